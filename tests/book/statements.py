"""Numbers that prose states: none but what its scenario gave, and what it quotes."""

import re

UNITS = r"ns|µs|ms|s|min|hours?|days?|years?|[kMGTPE]?B|[GT]B/s|tokens|bytes|times|USD"
NUMBER = re.compile(rf"(?<![\w.,-])\d[\d,.]*(?:\s?(?:(?:{UNITS})\b|%)|(?<=\d,\d\d\d))")

# What a page says of the paper, the canary or a log format, whatever the scenario.
QUOTED = {
    "10_kv_bytes": {"130,000 bytes", "8,000 tokens", "1 GB"},
    "20_recovery": {"1 GB", "0.21 ms", "333 ms", "1,600 times"},
    "60_fleet": {"8,000 tokens", "2 s", "40 ms"},
    "80_measured": {"12,288 bytes", "90 %", "95 %"},
    "tutorial": {"512 tokens", "16 tokens"},
}


def numbers(text: str) -> set[str]:
    """Sizes, times, shares and large counts that a text states.

    >>> sorted(numbers("1,600 GPUs, 333 ms, 3.5 TB, 37% and 12,031 requests; Figure 3.1."))
    ['1,600', '12,031', '3.5 TB', '333 ms', '37%']
    """
    return {" ".join(found[0].strip(",.").split()) for found in NUMBER.finditer(text)}
