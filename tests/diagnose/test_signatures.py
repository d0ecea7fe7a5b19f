import re

import pytest

from kvpaper.diagnose.reader import GATE
from kvpaper.diagnose.signatures import RANKS, table

SIGNATURES = table().signatures
CAUSES = [s for s in SIGNATURES if s.role in ("cause", "degraded")]
ROLES = {
    "cause", "outer", "shutdown", "harmless", "failed", "degraded", "hang", "cap", "start",
    "engine_up", "up", "stop",
}  # fmt: skip


@pytest.mark.parametrize("signature", CAUSES, ids=lambda s: s.id)
def test_the_example_of_a_signature_is_diagnosed_as_its_class(signature, diagnosed):
    answer = diagnosed(signature.example + "\n")
    assert (answer["cause"], answer["kind"]) == (signature.cause, signature.kind)
    assert answer["evidence"]
    assert answer["next_steps"]
    assert not any("{" in step for step in answer["next_steps"])


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda s: s.id)
def test_a_signature_is_complete(signature):
    assert signature.role in ROLES
    assert signature.source
    assert signature.why
    assert signature.confidence in RANKS
    assert any(needle in signature.example for needle in signature.any)
    assert any(GATE.search(line) for line in signature.example.split("\n"))
    if signature.role in ("cause", "degraded"):
        assert signature.cause in table().classes
        assert signature.kind
    for report in signature.related:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", report)


def test_ids_are_unique_and_all_sixteen_classes_have_a_signature():
    ids = [s.id for s in SIGNATURES]
    assert len(ids) == len(set(ids))
    assert {s.cause for s in CAUSES} == set(table().classes)
    assert len(table().classes) == 16


def test_what_is_no_cause_alone_never_yields_one(diagnosed):
    for signature in SIGNATURES:
        if signature.role in ("outer", "shutdown", "harmless", "failed", "stop", "hang", "start"):
            assert diagnosed(signature.example + "\n")["cause"] == "insufficient", signature.id


def test_a_low_hint_counts_only_where_the_start_failed(diagnosed):
    hints = [s for s in CAUSES if s.hint]
    assert hints
    for signature in hints:
        alone = signature.example.split("\n")[0]
        assert diagnosed(alone + "\n")["cause"] == "insufficient", signature.id
