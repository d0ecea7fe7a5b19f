"""The one exception that means: the input is at fault, and this is where."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input, told in one line: where it stands, what was found, what was expected.

    Parameters
    ----------
    where : str
        ``FILE:LINE``, ``FILE: KEY`` or ``KEY``, as exact as is known.
    found : str
        What stands there.
    expected : str
        What should stand there.

    Examples
    --------
    >>> str(InputError("mine.yaml:7 slo.ttft", "300", "a time with its unit, such as '300 ms'"))
    "mine.yaml:7 slo.ttft: found 300, expected a time with its unit, such as '300 ms'"
    """

    def __init__(self, where: str, found: str, expected: str) -> None:
        self.where, self.found, self.expected = where, found, expected
        super().__init__(f"{where}: found {found}, expected {expected}")

    def at(self, where: str) -> "InputError":
        """The same fault, told by where the input states it.

        >>> str(InputError("rate", "0", "a multiple above zero").at("mine.yaml:9 fleet.rate"))
        'mine.yaml:9 fleet.rate (rate): found 0, expected a multiple above zero'
        """
        return InputError(f"{where} ({self.where})", self.found, self.expected)

    def __reduce__(self):
        # It may be raised in a worker process and travel back.
        return type(self), (self.where, self.found, self.expected)


def hint(found: str, known: Iterable[str], most: int = 1) -> str:
    """What a misspelt name may mean, as the end of a message; nothing where none is near.

    >>> hint("nvem", ["dram", "nvme"])
    " (did you mean 'nvme'?)"
    """
    known = {name.lower(): name for name in reversed([*known])}
    near = difflib.get_close_matches(found.lower(), reversed(known), most, 0.4)
    return f" (did you mean {' or '.join(repr(known[name]) for name in near)}?)" if near else ""
