"""Rows to figures, in one style: ``predicted``, ``reuse`` and ``reports`` draw them."""

from kvpaper.figures.style import save

__all__ = ["save"]
