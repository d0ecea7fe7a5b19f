"""The bibliography style ``author_year``: entries are labelled and ordered as the text cites."""

from collections.abc import Iterable

from pybtex.database import Entry
from pybtex.plugin import register_plugin
from pybtex.richtext import Text
from pybtex.style.formatting.plain import Style
from pybtex.style.labels import BaseLabelStyle
from pybtex.style.sorting import BaseSortingStyle
from sphinx.application import Sphinx


def label(entry: Entry) -> str:
    """The authors, or the first of more than two, and the year."""
    persons = entry.persons["author"]
    names = [str(Text.from_latex(" ".join(person.last_names))) for person in persons]
    authors = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
    return f"{authors} {entry.fields['year']}"


class AuthorYearLabels(BaseLabelStyle):
    def format_labels(self, sorted_entries: Iterable[Entry]) -> list[str]:
        return [label(entry) for entry in sorted_entries]


class AuthorYearSorting(BaseSortingStyle):
    def sorting_key(self, entry: Entry) -> str:
        return label(entry).lower()


class AuthorYearStyle(Style):
    default_label_style = AuthorYearLabels
    default_sorting_style = AuthorYearSorting


def setup(app: Sphinx) -> dict[str, bool]:
    register_plugin("pybtex.style.formatting", "author_year", AuthorYearStyle)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
