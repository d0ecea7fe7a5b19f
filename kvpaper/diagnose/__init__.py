"""A start-up log of a serving engine -> the cause, the line that proves it, what to do next."""

from kvpaper.diagnose.report import diagnose, main, render

__all__ = ["diagnose", "main", "render"]
