import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpaper.errors import InputError
from kvpaper.formulas import capacity, pooling


@given(st.floats(0.05, 0.95), st.integers(1, 100))
def test_the_gain_is_that_of_the_power_law(beta, servers):
    one, pooled = capacity.hit_rate(np.array([1.0, servers]), 0.4, 200.0, beta)
    assert pooling.pooled_gain(servers, beta) == pytest.approx(pooled / one)


def test_one_server_gains_nothing():
    assert pooling.pooled_gain(1, 0.5) == 1
    assert pooling.random_routing_hit_probability(3, 1) == 1
    assert pooling.expected_copies(5, 1) == 1


def test_the_first_use_never_hits():
    assert pooling.random_routing_hit_probability(0, np.array([1, 2, 8])).tolist() == [0, 0, 0]


@pytest.mark.parametrize("servers", [2, 8])
def test_hits_and_copies_are_those_of_simulated_routing(servers):
    """Uses of one block sent at random; tolerance three standard errors."""
    rng, trials, uses = np.random.default_rng(5), 20_000, 6
    sent = rng.integers(servers, size=(trials, uses))
    for earlier in range(1, uses):
        hits = (sent[:, :earlier] == sent[:, [earlier]]).any(axis=1)
        theory = pooling.random_routing_hit_probability(earlier, servers)
        error = np.sqrt(theory * (1 - theory) / trials)
        assert abs(hits.mean() - theory) < 3 * error
    copies = np.array([len(set(row)) for row in sent.tolist()])
    error = copies.std(ddof=1) / np.sqrt(trials)
    assert abs(copies.mean() - pooling.expected_copies(uses, servers)) < 3 * error


@given(st.integers(1, 40), st.integers(1, 64))
def test_every_use_hits_or_makes_a_copy(uses, servers):
    hits = pooling.random_routing_hit_probability(np.arange(uses), servers).sum()
    assert hits + pooling.expected_copies(uses, servers) == pytest.approx(uses)


def test_many_uses_put_a_copy_on_every_server():
    assert pooling.expected_copies(10_000, 8) == pytest.approx(8)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda: pooling.pooled_gain(0, 0.5), "servers: found 0, expected at least one"),
        (lambda: pooling.pooled_gain(4, 1.0), r"tail_exponent: found 1, expected a number inside"),
        (lambda: pooling.random_routing_hit_probability(1, 0.5), "servers: found 0.5, expected"),
        (lambda: pooling.expected_copies(1, -1), "servers: found -1, expected"),
    ],
)
def test_what_has_no_meaning_is_refused(form, message):
    with pytest.raises(InputError, match=message):
        form()
