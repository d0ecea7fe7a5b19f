"""The highest rate: exact on known latencies, an error at its bound, an answer where none meets."""

import math

import fleets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpaper import scenario
from kvpaper.errors import InputError
from kvpaper.serving import arrivals, search
from kvpaper.serving.replay import replay
from kvpaper.serving.search import STEP, Served, highest

TARGETS = scenario.Slo(ttft="1 s", tpot="100 ms")


def known(ttft_at_one, tpot_at_one=0.01, growth=2.0):
    """Latencies that grow as a power of the rate, and the steps that were asked for."""
    asked = []

    def at(step):
        asked.append(step)
        rate = STEP**step
        worse = rate**growth
        return Served(rate, 100 * rate, ttft_at_one * worse, tpot_at_one * worse, (0.2,), (rate,))

    return at, asked


@given(st.floats(0.05, 20), st.integers(-30, 30))
def test_the_crossing_is_found_from_any_guess(ttft_s, start):
    at, asked = known(ttft_s)
    found = highest(at, TARGETS, start)
    # A line in the logarithms is exact for a power of the rate.
    assert found.requests_per_s == pytest.approx(min(ttft_s**-0.5, 10**0.5), rel=1e-9)
    assert found.output_tokens_per_s == pytest.approx(100 * found.requests_per_s)
    assert found.written_bytes_per_s[0] == pytest.approx(found.requests_per_s)
    assert STEP**found.step <= found.requests_per_s < STEP ** (found.step + 1)
    assert len(set(asked)) <= 2 * math.log2(abs(found.step - start) + 2) + 3


def test_the_target_that_binds_is_named():
    assert highest(known(0.5)[0], TARGETS).binding == "ttft"
    assert highest(known(0.01, 0.05)[0], TARGETS).binding == "tpot"


def test_a_bound_is_no_answer():
    with pytest.raises(InputError, match=r"rate: found targets still met at 1.63 requests/s"):
        highest(known(1e-9, 1e-9)[0], TARGETS, last=10)


def test_not_to_meet_the_targets_at_any_rate_is_an_answer():
    found = highest(known(50.0, growth=0.0)[0], TARGETS, lowest=-7)
    assert found == (0.0, 0.0, (), "ttft", -7)


def test_a_cliff_gives_the_last_rate_that_was_replayed():
    def at(step):
        ttft_s = 0.5 if step < 4 else math.inf
        return Served(STEP**step, 1.0, ttft_s, 0.01, (), ())

    found = highest(at, TARGETS)
    assert (found.step, found.requests_per_s) == (3, pytest.approx(STEP**3))


class TestServed:
    case = scenario.load("quick")

    def replayed(self, requests=2000, prefill_s=1e-3, **changes):
        trace = arrivals.poisson(2.0, np.full(requests, 160), 20, fleets.BLOCK)
        return replay(fleets.fleet(fleets.pool(prefill_s=prefill_s), **changes), trace)

    def test_rates_and_times_are_those_behind_the_warm_up(self):
        replayed = self.replayed()
        served = Served.of(replayed, self.case)
        counted = replayed.arrival_s >= 0.25 * replayed.arrival_s[-1]
        assert served.requests_per_s == pytest.approx(2.0, rel=4 / counted.sum() ** 0.5)
        assert served.output_tokens_per_s == pytest.approx(20 * served.requests_per_s, rel=0.01)
        late = (replayed.ttft_s[counted] > served.ttft_s).mean()
        assert 0.1 - 1 / counted.sum() <= late <= 0.1
        assert served.hit_shares == (0.0,)

    def test_turning_requests_away_is_no_way_to_be_fast(self):
        crowded = self.replayed(queue_limit=1, prefill_s=5e-3)
        assert crowded.rejected.mean() > 0.1
        assert Served.of(crowded, self.case).ttft_s == math.inf

    def test_few_requests_have_no_percentile(self):
        with pytest.raises(InputError, match=r"requests after the warm-up, expected at least 300"):
            Served.of(self.replayed(requests=350), self.case)

    def test_excess_is_the_log_of_the_worse(self):
        served = Served(1.0, 1.0, 2.0, 0.05, (), ())
        assert served.excess(TARGETS) == pytest.approx(math.log(2))
        assert served.excess(scenario.Slo(ttft="4 s", tpot="100 ms")) == pytest.approx(
            math.log(0.5)
        )
        assert search.Served(1.0, 1.0, 0.0, 0.0, (), ()).excess(TARGETS) == -math.inf
