"""What an exit means."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.core.events import WorkerExited
from surefoot.core.faults import classify


def exited(**evidence: Any) -> WorkerExited:
    return WorkerExited(node="n0", rank=3, **evidence)


@pytest.mark.parametrize(
    ("evidence", "signature", "blame"),
    [
        ({"signal": 9}, "signal 9", "platform"),
        ({"code": 1}, "exit code 1", "platform"),
        ({"code": 0}, "exit code 0", "platform"),
        ({}, "gone without a word", "platform"),
        ({"error": {"type": "ValueError", "message": "bad"}}, "ValueError: bad", "user"),
        ({"error": {"type": "E", "message": "m", "signature": "own"}, "signal": 9}, "own", "user"),
        ({"error": {}}, ": ", "user"),
    ],
)
def test_the_best_evidence_speaks(evidence: dict[str, Any], signature: str, blame: str) -> None:
    """What the rank reported comes first, then signal, then exit code; it says where, and whose fault."""
    fault = classify(exited(**evidence), 120)
    assert (fault.signature, fault.blame) == (signature, blame)
    assert (fault.kind, fault.rank, fault.step, fault.retryable) == ("crash", 3, 120, True)


def test_one_cause_has_one_signature() -> None:
    """Numbers and addresses don't tell causes apart; words do."""

    def signature(message: str) -> str:
        return classify(exited(error={"type": "RuntimeError", "message": message}), 1).signature

    assert signature("CUDA error at 0x7fA3: 12 bytes") == signature("CUDA error at 0x11: 5 bytes")
    assert signature("out of memory") != signature("illegal access")


def test_a_signature_is_short() -> None:
    """A message of any length makes a signature of some 200 characters."""
    assert len(classify(exited(error={"type": "E", "message": "x" * 10_000}), 1).signature) < 220
