import json
import operator
import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpaper import data, scenario
from kvpaper.errors import InputError

SHIPPED = sorted(path.stem for path in (data.FOLDER / "scenarios").glob("*.yaml"))
PAPER = (data.FOLDER / "scenarios" / "paper.yaml").read_text(encoding="utf-8")


def load_edited(folder, old, new):
    assert old in PAPER
    path = folder / "mine.yaml"
    path.write_text(PAPER.replace(old, new, 1), encoding="utf-8")
    return scenario.load(str(path))


def refusal(folder, old, new):
    with pytest.raises(InputError) as error:
        load_edited(folder, old, new)
    message = str(error.value)
    assert "\n" not in message
    assert re.match(r".*mine\.yaml:\d+", message)
    return message


@pytest.mark.parametrize("name", SHIPPED)
def test_every_leaf_of_a_shipped_scenario_has_a_source(name):
    loaded = scenario.load(name)
    unsourced = [key for key, leaf in loaded.leaves.items() if not leaf.source]
    assert unsourced == []


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_scenario_fits_the_published_schema(name):
    jsonschema = pytest.importorskip("jsonschema")
    text = (data.FOLDER / "scenarios" / f"{name}.yaml").read_text(encoding="utf-8")
    published = json.loads((data.FOLDER / "scenarios" / "schema.json").read_text(encoding="utf-8"))
    tree = yaml.safe_load(text)
    stack = [tree]
    while stack:
        part = stack.pop()
        for key, value in list(part.items()):
            if isinstance(value, dict):
                stack.append(value)
            elif value is None:
                del part[key]
    jsonschema.validate(tree, published)


def test_published_schema_is_the_generated_one():
    published = json.loads((data.FOLDER / "scenarios" / "schema.json").read_text(encoding="utf-8"))
    assert published == scenario.schema()


def test_paper_by_hand():
    paper = scenario.load("paper")
    assert paper.hardware.tiers["nvme"].read_bytes_per_s == 3e9
    assert paper.hardware.tiers["hbm"].read_bytes_per_s == 4.8e12
    assert list(paper.hardware.tiers) == ["hbm", "dram", "nvme", "remote"]
    assert paper.slo.ttft_s == pytest.approx(0.3)
    assert paper.prices.dram == pytest.approx(13.8e-9)
    assert paper.low.nvme == pytest.approx(0.102e-9)
    assert paper.high.dram == pytest.approx(39e-9)
    assert paper.leaves["prices.dram"].as_of == "2026-Q1"


def test_form_of_the_documentation_is_accepted(tmp_path):
    text = """
model: llama-3.1-8b
hardware:
  name: H200-NVL
  gpus: 1
  tiers:
    hbm: {capacity: 80 GiB, read: 4.8 TB/s}
    dram: {capacity: 1 TiB, read: 64 GB/s, latency: 10 us}
serving:
  element: bf16
  block: 512 tokens
  prefill: {rate: 580 TFLOP/s}
  first_token_from: decode
  transfer: {rate: 50 GB/s, latency: 1 ms}
workload: {requests: 2 /s, prompt: 8000 tokens, output: 500 tokens, trace: null, beta: 0.6}
slo: {ttft: 300 ms, tpot: 40 ms, percentile: 90}
prices:
  gpu: {value: "3.50 USD/hour", source: "a survey", as_of: 2026-05}
  dram: {value: "13.8 USD/GB", source: "a report", as_of: 2026-Q1}
  reading: amortised
"""
    path = tmp_path / "short.yaml"
    path.write_text(text, encoding="utf-8")
    loaded = scenario.load(str(path))
    assert loaded.name == "short"
    assert loaded.workload.requests_per_s == 2
    assert loaded.low == loaded.prices == loaded.high


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("300 ms", "300", "slo.ttft: found 300 (a number without a unit)"),
        ("300 ms", "300 GB", "slo.ttft: found '300 GB' (a unit of another kind"),
        ("  ttft:", "  tttft:", "slo.tttft: found an unknown key"),
        ("  ttft:", "  tttft:", "did you mean 'ttft'?"),
        ("high: 0.365 USD/GB", "hihg: 0.365 USD/GB", "prices.nvme: found key 'hihg'"),
        (
            "beta: {value: 0.6",
            "beta: {value: 1",
            "workload.beta: found 1, expected a number between",
        ),
        ("beta: {value: 0.6", "beta: {value: 0", "workload.beta"),
        ("beta: {value: 0.6", "beta: {value: -0.2", "workload.beta"),
        ("beta: {value: 0.6", "beta: {value: much", "workload.beta: found 'much'"),
        ("model: {value: llama-3.1-8b", "model: {value: lama-3.1-8b", "llama-3.1-8b"),
        ("  tpot:", "  ttft:", "found 'ttft' twice"),
        ("hardware:\n", "hardware: [\n", "expected valid YAML"),
        ("    nvme:\n", "    tape:\n", "hardware.tiers.tape"),
        ("read: {value: 3 GB/s", "read: {value: 0 GB/s", "hardware.tiers.nvme.read"),
        ("requests: {value: 2 /s", "requests: {value: -2 /s", "workload.requests"),
        ("gpus: {value: 1", "gpus: {value: 0", "hardware.gpus"),
        ("capacity: {value: 141 GB", "capacity: {value: 1e400 GB", "hardware.tiers.hbm.capacity"),
        ("value: amortised", "value: stolen", "prices.reading: found 'stolen'"),
        ("new: {value: 256", "new: {value: 25600", "workload: found prompt 8000 tokens"),
        ("    rate: {value: 580 TFLOP/s", "    rat: {value: 580 TFLOP/s", "serving.prefill.rat"),
        ("slo:\n", "slo: 300 ms\nelse:\n", "slo"),
        ("{value: 141 GB, source", "{value: 141 GB, low: 1 GB, source", "a band"),
        ("percentile: {value: 90", "percentile: [90", "valid YAML"),
    ],
)
def test_refuses_in_one_line_with_file_line_and_key(tmp_path, old, new, told):
    assert told in refusal(tmp_path, old, new)


@pytest.mark.parametrize("key", ["source", "as_of"])
@pytest.mark.parametrize("price", ["gpu", "dram", "nvme", "energy"])
def test_a_price_without_date_or_source_is_refused(tmp_path, price, key):
    line = next(line for line in PAPER.splitlines() if line.startswith(f"  {price}: "))
    without = re.sub(rf", {key}: (\"[^\"]*\"|[^,}}]*)", "", line)
    assert without != line
    assert f"prices.{price}: found a price without '{key}'" in refusal(tmp_path, line, without)


@pytest.mark.parametrize("date", ["May 2026", "2026-13", "2026-Q5", "26-05", "2026-05-40"])
def test_a_wrong_date_is_refused(tmp_path, date):
    assert "expected a date" in refusal(tmp_path, "as_of: 2026-05", f"as_of: {date}")


def test_a_bare_price_is_refused(tmp_path):
    line = next(line for line in PAPER.splitlines() if line.startswith("  dram: {value: 13.8"))
    assert "prices.dram" in refusal(tmp_path, line, "  dram: 13.8 USD/GB")


@pytest.mark.parametrize("cut", [0, 1, 400, 1500, 3000])
def test_a_truncated_file_is_refused(tmp_path, cut):
    path = tmp_path / "cut.yaml"
    path.write_text(PAPER[:cut], encoding="utf-8")
    with pytest.raises(InputError):
        scenario.load(str(path))


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00",
        b"a: &a [*a]\n",
        b"- 1\n- 2\n",
        b"a: !!python/object/apply:os.system [true]\n",
        b"\x00",
        b"a: " + b"[" * 5000,
        b"x0: &x0 {a: 1}\n"
        + b"".join(
            b"x%d: &x%d {a: *x%d, b: *x%d, c: *x%d}\n" % (n, n, n - 1, n - 1, n - 1)
            for n in range(1, 30)
        ),
    ],
)
def test_hostile_files_are_refused(tmp_path, content):
    path = tmp_path / "hostile.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError):
        scenario.load(str(path))


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(InputError):
        scenario.load(str(path))


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match="did you mean 'paper'"):
        scenario.load("papper")


def test_rented_without_rent_is_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    text = PAPER.replace("value: amortised", "value: rented")
    path.write_text(text[: text.index("  rent:\n")], encoding="utf-8")
    with pytest.raises(InputError, match="rented"):
        scenario.load(str(path))


def test_a_trace_is_looked_up_beside_the_scenario(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(PAPER.replace("value: mooncake_conversation", "value: ./log.jsonl"), "utf-8")
    assert scenario.load(str(path)).workload.trace == "./log.jsonl"
    (tmp_path / "log.jsonl").write_text("{}\n", "utf-8")
    assert scenario.load(str(path)).workload.trace == str(tmp_path / "log.jsonl")
    assert scenario.load("paper").workload.trace == "mooncake_conversation"


def test_values_are_changed_by_their_dotted_names():
    paper = scenario.load("paper")
    rate = "hardware.tiers.nvme.read_bytes_per_s"
    other = paper.changed({"name": "mine", "slo.ttft_s": 1.0, rate: 1e9, "fleet.chunk_tokens": 512})
    assert (other.name, other.slo.ttft_s, other.fleet.chunk_tokens) == ("mine", 1.0, 512)
    assert other.hardware.tiers["nvme"].read_bytes_per_s == 1e9
    assert other.hardware.tiers["dram"] == paper.hardware.tiers["dram"]
    assert paper.changed({}) is paper
    assert paper == scenario.load("paper")


class TestReads:
    def test_declared_keys_are_seen_and_no_others(self):
        view = scenario.Reads(
            scenario.load("paper"), ("model", "serving.element", "hardware.tiers", "prices.dram")
        )
        assert view.name == "paper"
        assert view.model.name
        assert view.serving.element == "bf16"
        assert view.hardware.tiers["nvme"].read_bytes_per_s == 3e9
        assert view.low.dram == pytest.approx(12.8e-9)
        for closed in ("serving.queue_wait_s", "slo.ttft_s", "low.nvme", "hardware.gpus"):
            with pytest.raises(AttributeError, match="not declared"):
                operator.attrgetter(closed)(view)

    def test_the_whole_is_there_where_all_of_it_is_declared(self):
        case = scenario.load("paper")
        view = scenario.Reads(case, ("model", "slo", "hardware.tiers"))
        assert view.whole("model", "slo") is case
        with pytest.raises(AttributeError, match="'hardware' is not declared"):
            view.whole("model", "hardware")
