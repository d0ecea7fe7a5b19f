"""The answer follows from the cases: other costs, another verdict."""

from math import inf, log

import made_up_grid as made_up
import pandas as pd
import pytest

from kvpaper import data, decision, results

AT = {"model": "Own-1B", "trace": "my_log", "ttft_slo_s": 0.3, "tpot_slo_s": 0.04,
      "router": "prefix", "scope": "instance", "varied": ""}  # fmt: skip


NOTHING = results.table([])


def cases(usd, **options):
    return decision.cases(made_up.table(made_up.case(usd, **AT | options)))


def one(usd, **options):
    return cases(usd, **options).iloc[0]


@pytest.fixture(scope="module")
def rows():
    return made_up.table()


@pytest.fixture(scope="module")
def public(rows):
    return decision.cases(rows)


@pytest.fixture(scope="module")
def own():
    return cases(made_up.costs(2.0, 0.8, 0.9))


def test_a_case_has_its_cells_side_by_side(rows, public):
    assert len(public) == len(rows[rows.quantity == "feasible"]) / 4
    case = one(made_up.costs(2.0, 0.8, 0.9), off=1.2)
    assert (case.cheapest, case.over) == ("both", "disaggregated")
    assert case.usd_both == pytest.approx(2 * 0.8 * 0.9)
    assert case.usd_both_low < case.usd_both < case.usd_both_high
    assert case.usd_predicted_both == pytest.approx(1.2 * case.usd_both)
    assert case.rate_predicted_none == pytest.approx(case.rate_none / 1.2)
    assert case.saved == pytest.approx(-log(0.9))
    assert case.interaction == pytest.approx(0, abs=1e-12)
    assert case.predicted_interaction == pytest.approx(0, abs=1e-12)
    assert (case.share_disaggregation, case.share_tiers) == pytest.approx((-log(0.8), -log(0.9)))
    assert (case.bytes_both_dram, case.bytes_both_nvme) == (made_up.DRAM, made_up.NVME)


def test_the_target_is_measured_in_cold_prefills(public):
    case = public[(public.model == "DeepSeek-V3") & (public.trace == "mooncake_synthetic")].iloc[0]
    assert case.cold_s == pytest.approx(1.3 * 1.64)


def test_the_base_is_where_inputs_were_varied(public):
    base = decision.base(public)
    assert list(base.model) == list(made_up.MODELS)
    assert {name: set(base[name]) for name in made_up.BASE} == {
        name: {value} for name, value in made_up.BASE.items()
    }
    assert decision.base(public[public.varied == ""]).model.is_unique


def test_a_scenario_that_no_fleet_meets():
    case = cases(dict.fromkeys(made_up.CELLS, inf))
    said = decision.combined(case, case[:0])
    assert "no fleet that was tried meets 300\N{NO-BREAK SPACE}ms to the first token" in said
    assert said.endswith("the first token comes too late.")
    bought = decision.when_to_buy(case, case, NOTHING)
    assert "For this scenario: no fleet that was tried meets" in bought
    assert "No fleet meets the targets in any of 1 case." in bought
    assert "nan" not in said + bought


def test_a_scenario_that_one_fleet_alone_meets():
    case = cases(dict.fromkeys(made_up.CELLS, inf) | {"both": 3.0})
    said = decision.combined(case, case)
    assert "has split pools with tiers and costs 3\N{NO-BREAK SPACE}USD" in said
    assert "no other kind of fleet meets the targets" in said
    assert "Own-1B only split pools with tiers can meet the targets" in said
    assert "cost the same within noise as one pool without tiers, for all of 1 model" in said
    assert "and in 1 it is the only one" in said
    assert "In no case can all four fleets meet the targets" in said
    assert "nan" not in said
    assert "whether to split the pools in 1 (1 yes, 0 no)" in decision.when_to_buy(
        case, case, NOTHING
    )


def test_a_tie_within_noise():
    case = cases(made_up.costs(2.0, 0.995, 1.0), noise=0.02)
    said = decision.combined(case, case)
    assert "costs the same within the noise of the replay" in said
    assert "cost the same within noise as one pool without tiers, for all of 1 model" in said
    assert "Own-1B 0% (−4% to +4%; the split 0%, tiers 0%)" in said
    assert "In 0 it is ahead of the next beyond the noise" in said
    bought = decision.when_to_buy(case, case, NOTHING)
    assert "decide whether to split the pools in 0 (0 yes, 0 no)" in bought
    assert "the simpler one is the better one" in bought


def test_levers_that_make_it_dearer():
    case = cases(made_up.costs(2.0, 1.3, 1.1))
    said = decision.combined(case, case)
    assert "has one pool without tiers" in said
    assert "Own-1B +43% (+40% to +46%; the split +30%, tiers +10%)" in said
    assert "cost 43% more for 1 of 1 model than" in said
    bought = decision.when_to_buy(case, case, NOTHING)
    assert "For this scenario: keep one pool and buy no tier;" in bought
    assert "Do neither: always. The cheapest fleet does so in 1 of 1 case." in bought
    assert "(0 yes, 1 no)" in bought


def test_a_tier_that_is_not_worth_buying_is_not_bought():
    usd = made_up.costs(2.0, 0.8, 1.2)
    said = decision.when_to_buy(cases(usd), cases(usd), NOTHING)
    assert "split the pools and buy no tier; that is 17%" in said


@pytest.mark.parametrize(
    ("interaction", "told"),
    [
        (0.2, "As a rule the two levers compete: of 1 case"),
        (-0.2, "As a rule the two levers help each other: of 1 case"),
        (0.01, "in 1 the sign of their interaction is within the noise"),
    ],
)
def test_the_sign_of_an_interaction_counts_beyond_noise_only(interaction, told):
    case = cases(made_up.costs(2.0, 0.8, 0.9, interaction))
    assert told in decision.combined(case, case)


def test_what_is_due_to_each_lever(own):
    said = decision.combined(own, own)
    assert "Own-1B −28% (−29% to −27%; the split −20%, tiers −10%)" in said
    assert "the split saves more than the tiers in 1, the tiers more than the split in 0" in said


@pytest.mark.parametrize(
    ("off", "sign", "told"),
    [
        (1.05, 1, "is not borne out here"),
        (1.05, -1, "is borne out for the interaction, and not for the costs"),
        (1.5, 1, "is borne out for the costs, and not for the sign"),
        (1.5, -1, "as Kareto observes, is borne out."),
    ],
)
def test_the_closed_form_is_judged_by_size_and_by_sign(own, off, sign, told):
    usd = made_up.costs(2, 0.8, 0.9, 0.2)
    parts = [row for at in range(9) for row in made_up.case(usd, off=off, **AT | {"at": at})]
    grid = decision.cases(made_up.table(parts))
    grid.loc[:3, ["interaction", "interaction_low", "interaction_high"]] = -0.3, -0.4, -0.2
    grid.predicted_interaction = sign * grid.interaction
    said = decision.combined(own, grid)
    assert told in said
    assert f"in {36 if off < 1.1 else 0} of 36 fleets" in said
    assert (
        f"it has the sign of {9 if sign > 0 else 0}; always to say the commoner sign has 5" in said
    )
    assert f"of the sign is {'beyond' if sign > 0 else 'within'} chance" in said


def test_a_slow_disk_model_by_model(own, public):
    said = decision.combined(own, public)
    assert (
        "as their only tier, at 500\N{NO-BREAK SPACE}MB/s a GPU against 7\N{NO-BREAK SPACE}GB/s"
        in said
    )
    assert "DeepSeek-V3 no change beyond noise, bought at every rate" in said
    assert "Llama-3.1-70B +26%, bought from 1.5\N{NO-BREAK SPACE}GB/s on" in said
    gone = "Qwen3-235B-A22B and Llama-3.1-70B"
    assert (
        f"its rate disqualifies the disk holds for {gone} and does not hold for DeepSeek-V3."
        in said
    )
    only = decision.combined(own, public[public.model == "DeepSeek-V3"])
    assert only.endswith("disqualifies the disk does not hold for DeepSeek-V3.")
    never = public.assign(bytes_both_nvme=float("nan"))
    assert (
        "does not matter for Qwen3-235B-A22B, DeepSeek-V3 and Llama-3.1-70B"
        in decision.combined(own, never)
    )


def test_when_to_buy_says_what_it_depends_on(own, public, rows):
    said = decision.when_to_buy(own, public, rows)
    assert (
        "Buy flash: about as often as not. The cheapest fleet does so in 56 of 112 cases." in said
    )
    assert "(mooncake conversation never, mooncake synthetic always)" in said
    assert "to split pools without tiers beyond DRAM at 30 USD/GB" in said
    assert "to one pool with tiers beyond 120\N{NO-BREAK SPACE}ms a token" in said
    assert "20\N{NO-BREAK SPACE}min (Qwen3-30B-A3B)" in said
    steady = decision.when_to_buy(own, public, rows[rows.quantity != "flips_at"])
    assert "No input that was varied alone turns the verdict." in steady
    assert "nan" not in said


def test_the_headline_counts_models(public):
    said = decision.headline(decision.base(public))
    assert said == (
        "On the log mooncake conversation, with 2\N{NO-BREAK SPACE}s to the first token and "
        "40\N{NO-BREAK SPACE}ms a token, split pools with tiers cost 9% to 34% less for 4 of "
        "5 models than one pool without tiers."
    )


def test_the_readme_says_what_the_results_say():
    cases = decision.cases(results.read("public", "70_combined"))
    readme = (data.FOLDER.parent / "README.md").read_text("utf-8")
    assert decision.headline(decision.base(cases)).replace("\N{NO-BREAK SPACE}", " ") in readme
    assert decision.finer(cases).rpartition(": ")[2].partition(". ")[2] in readme


def test_a_larger_fleet_is_told_by_model():
    rows = [
        {
            "model": "m",
            "varied": "gpus",
            "at": at,
            "usd_none": 10.0,
            "usd_both": usd,
            "cheapest": one,
        }
        for at, usd, one in ((16.0, 12.0, "tiered"), (32.0, 8.0, "both"))
    ]
    said = decision.finer(pd.DataFrame(rows))
    assert "m \N{MINUS SIGN}20% on 32 GPUs, +20% on 16" in said
    assert "for 1 of 1 model on the larger fleets, for 0 on the smaller" in said
    assert "that alone moves the verdict" in said
    alike = [row | {"cheapest": "both"} for row in rows]
    assert "that alone moves no verdict" in decision.finer(pd.DataFrame(alike))
    assert not decision.finer(pd.DataFrame(rows[:1]))


def test_fleets_tell_their_configuration(public):
    found = decision.fleets(decision.base(public), {"model/tp8ep8": "eight ranks"})
    assert len(found) == 20
    best = found[(found.model == "DeepSeek-V3") & (found.fleet == "split pools with tiers")]
    assert best.best.iloc[0] == (
        "8 GPUs as eight ranks prefill, 8 GPUs as eight ranks decode; "
        "256\N{NO-BREAK SPACE}GB of host DRAM a GPU"
    )
    missed = found[found.model == "Llama-3.1-70B"]
    assert set(missed.usd_per_million) == {"infeasible"}
    assert set(missed.best) == {"the first token comes too late"}


def test_contrasts_have_bands(public):
    found = pd.DataFrame(decision.contrasts(decision.base(public)))
    assert set(found.quantity) == {
        "log_interaction",
        "log_saving_of_the_split",
        "log_saving_of_tiers",
    }
    assert (found.low < found.value).all()
    assert (found.value < found.high).all()
