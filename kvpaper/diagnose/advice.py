"""What to do next, with the numbers of the log put into the formulas that apply."""

import math
import string
from collections.abc import Mapping, Sequence

from kvpaper.diagnose.signatures import table
from kvpaper.redact import redact


def next_steps(steps: Sequence[str], numbers: Mapping[str, str]) -> list[str]:
    """The steps whose every number is known, filled in; a step without numbers always.

    What is filled in comes from the log and may quote a secret.
    """
    values = {name: redact(text) for name, text in (*numbers.items(), *derived(numbers).items())}
    return [step.format_map(values) for step in steps if _names(step) <= values.keys()]


def _names(step: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(step) if name}


def derived(numbers: Mapping[str, str]) -> dict[str, str]:
    """Numbers that follow from those in the log.

    - utilization that fits: free / total, rounded down to a hundredth;
    - missing memory: needed - available, desired - free (GiB);
    - context length that fits: as printed, else full length x available / needed, rounded down to
      a multiple of 16, the smallest usual block;
    - tokens a block: the printed length over the cap's usable blocks (cap - 1, one is kept
      empty); blocks needed: full length over that, rounded up, plus the empty one;
    - divisors of the dimension that cannot be split.
    """
    found: dict[str, str] = {}
    value = {name: float(text) for name, text in numbers.items() if _is_number(text)}
    if value.keys() >= {"free_gib", "total_gib"} and value["total_gib"] > 0:
        fitting = math.floor(100 * value["free_gib"] / value["total_gib"]) / 100
        found["fitting_utilization"] = f"{fitting:.2f}"
    if value.keys() >= {"free_gib", "desired_gib"}:
        found["short_gib"] = f"{value['desired_gib'] - value['free_gib']:.2f}"
    if value.keys() >= {"needed_gib", "available_gib"}:
        found["missing_gib"] = f"{value['needed_gib'] - value['available_gib']:.2f}"
        if value["needed_gib"] > 0 and "model_tokens" in value and "fitting_tokens" not in value:
            share = value["available_gib"] / value["needed_gib"]
            found["fitting_len"] = str(int(value["model_tokens"] * share) // 16 * 16)
    if "fitting_tokens" in value:
        found["fitting_len"] = f"{value['fitting_tokens']:.0f}"
    if value.keys() >= {"fitting_tokens", "cap_blocks", "model_tokens"} and value["cap_blocks"] > 1:
        block_tokens = value["fitting_tokens"] / (value["cap_blocks"] - 1)
        if block_tokens >= 1:
            found["block_tokens"] = f"{block_tokens:.0f}"
            found["needed_blocks"] = str(math.ceil(value["model_tokens"] / block_tokens) + 1)
    if "dummy_requests" in value:
        found["half_requests"] = str(max(1, int(value["dummy_requests"]) // 2))
    if "segment_bytes" in value:
        found["segment_mib"] = f"{value['segment_bytes'] / 2**20:.1f}"
    dimension = value.get("heads", value.get("dimension", 0))
    if 0 < dimension <= 10**9 and "parallel" in value:
        sizes = [n for n in range(1, 65) if dimension % n == 0]
        found["divisors"] = ", ".join(map(str, sizes))
    return found


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def capture(version: str, connector: str, hanging: bool) -> list[str]:
    """How to get the log that is missing, for the version at hand (all versions if unknown)."""
    words, row = table().words["capture"], prefix_of(version) or {}
    names = "; ".join(
        f"{known['engine_core']} or {known['worker']} ({known['versions']})"
        for known in ([row] if row else table().prefixes)
    )
    one_process = row.get("one_process", words["one_process"])
    steps = [step.format(names=names, one_process=one_process) for step in words["steps"]]
    if hanging:
        who = f"connector {connector}" if connector else "connector, other ranks and other nodes"
        return [words["waiting"].format(who=who), *steps]
    return [*steps, words["server"].format(connector=connector)] if connector else steps


def prefix_of(version: str) -> dict | None:
    """The row of the prefix table for a version such as ``0.11.0``, or None."""
    key = [int(part) for part in version.split(".")[:3] if part.isdigit()]
    if len(key) < 2:
        return None
    return next(row for row in table().prefixes if key < row.get("below", [math.inf]))
