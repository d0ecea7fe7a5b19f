"""How far the replay is off, in sentences that follow from the rows."""

from typing import TYPE_CHECKING

from kvpaper import answers

if TYPE_CHECKING:
    from pandas import DataFrame, Series

# What counts as near.
_NEAR = 0.1


def answer(rows: "DataFrame") -> str:
    """What engines and the planner say of the replay; ``rows`` are those of both."""
    rows = rows.reindex(columns=rows.columns.union(["machine", "connector", "over"]))
    found = [
        _engines(str(machine), "one engine" if one else "two engines", part)
        for (machine, one), part in rows.groupby(["machine", rows.connector == "none"])
    ]
    return "\n\n".join([*(found or [_NONE]), _planner(rows)])


_NONE = "No open loop of real engines has a record yet, so the replay is held against none."


def _engines(machine: str, engines: str, rows: "DataFrame") -> str:
    """Hits, times, and the closed form beside, of the loops of one machine."""
    counts = {name: int(part.value.sum()) for name, part in rows.groupby("quantity")}
    medians = {over: _ratios(rows, "ttft", 50, over) for over in ("simulated", "predicted")}
    loops, setters = len(medians["simulated"]), sorted(set(rows.set_by))
    near = int((abs(medians["simulated"] - 1) <= _NEAR).sum())
    load = " or ".join(dict.fromkeys(answers.LOADS[one] for one in rows.load))
    late_s = rows[rows.quantity == "longest_delay_of_sending_s"].value.max()
    late = f", in which the machine stood still: a request was sent {answers.duration(late_s)} late"
    return (
        f"On {machine} ({load}), {answers.counted(loops, 'open loop')} of {engines} ran"
        f"{late if late_s > 1 else ''}. The replay, set by {answers.listed(setters)}, finds as "
        f"many cached tokens for {counts['requests'] - counts['requests_that_differ']:,} of "
        f"{counts['requests']:,} requests. Measured over simulated, the median time to first "
        f"token is {_range(medians['simulated'])}, within {_NEAR:.0%} in {near} of {loops}; the "
        f"90th percentile is {_range(_ratios(rows, 'ttft', 90))}, the median time per token "
        f"{_range(_ratios(rows, 'tpot', 50))}. Measured over the closed form, the median time to "
        f"first token is {_range(medians['predicted'])}."
    )


def _ratios(rows: "DataFrame", name: str, percentile: int, over: str = "simulated") -> "Series":
    at = (rows.quantity == f"{name}_ratio") & (rows.percentile == percentile)
    return rows[at & (rows.over == over)].value


def _range(values: "Series") -> str:
    low, high = f"{values.min():.2f}", f"{values.max():.2f}"
    return low if low == high else f"{low} to {high}"


def _planner(rows: "DataFrame") -> str:
    """Whether two pools win, and by how much, beside the planner that is asked the same."""
    names = ["quantity", "pools", "model", "element", "factors"]
    told = rows[rows.kind == "tabulated"].set_index(names).value.sort_index()
    played = rows[rows.arrivals.notna()].set_index(names)
    parts, sizes = [], {}
    for (spread, factors), part in played[played.kind == "simulated"].groupby(
        ["arrivals", "factors"], sort=False
    ):
        own = part.value.sort_index()
        gain, said = own["two_over_one"], told["two_over_one"].reindex(own["two_over_one"].index)
        same = int(((gain > 1) == (said > 1)).sum())
        how = "without factors" if factors == "none" else "with its factors on two pools"
        parts.append(
            f"- {spread} arrivals, {how}: {same} of {len(gain)} verdicts are the same; the ratio "
            f"is {_range(gain / said)} of the planner's."
        )
        for pools in ("one", "two"):
            sizes[spread, factors, pools] = _range(own[_RATE, pools] / told[_RATE, pools])
    expected, own = (
        played[played.kind == kind].set_index("arrivals", append=True).value["two_over_one"]
        for kind in ("predicted", "simulated")
    )
    wins = told["two_over_one"]
    wins = wins[wins.index.get_level_values("factors") != "none"]
    one, two = (sizes["steady", "the planner's", pools] for pools in ("one", "two"))
    return (
        f"The planner lets two pools win over one for {(wins > 1).sum()} of {len(wins)} models and "
        f"caches; its ratio of throughput is {_range(wins)}. The search over replays, asked the "
        "same:\n\n" + "\n".join(parts) + "\n\n"
        f"At steady arrivals and with its factors, one pool does {one} and two pools do {two} of "
        "what the planner says. The closed form gives "
        f"{_range(expected / own.reindex(expected.index))} of the ratio of the replays."
    )


_RATE = "tokens_per_s_per_gpu"
