"""What the resume audit says in words."""

import pytest

from core.spec import ResourcesSpec
from tests.factories import make_spec
from worker.audit import ResumeAudit

PLAIN = make_spec()
WITH_VLLM = make_spec(hyperparameters=PLAIN.hyperparameters.model_copy(update={"use_vllm": True}))


def audited(*, recorded: float, replayed: float) -> ResumeAudit:
    audit = ResumeAudit()
    audit.compare(3, {"reward": recorded}, {"reward": replayed})
    return audit


@pytest.mark.parametrize(
    "audit", [ResumeAudit(), audited(recorded=0.5, replayed=0.5), audited(recorded=0.5, replayed=0.25)]
)
def test_with_vllm_it_says_whatever_it_found_that_equal_bits_cannot_be_promised(audit: ResumeAudit):
    assert "equal bits cannot be promised, because" in audit.sentence(WITH_VLLM)
    assert "promised" not in audit.sentence(PLAIN)


@pytest.mark.parametrize(
    ("replayed", "words"),
    [(0.5, "1 step done again, every number equal"), (0.25, "1 of 1 step done again came out differently. A GPU may")],
)
def test_elsewhere_only_a_difference_asks_for_an_explanation(replayed: float, words: str):
    sentence = audited(recorded=0.5, replayed=replayed).sentence(PLAIN)
    assert words in sentence
    assert ("A GPU" in sentence) == (replayed != 0.5)


@pytest.mark.parametrize("replayed", [0.5, 0.25])
def test_several_gpus_are_told_from_processes_on_a_cpu_whatever_was_found(replayed: float):
    sentence = audited(recorded=0.5, replayed=replayed).sentence(make_spec(resources=ResourcesSpec(gpus=2)))
    assert "2 GPUs add up their gradients in an order that may change" in sentence
    assert "processes on a CPU of the same kind should give them" in sentence


def test_a_step_that_is_entered_again_counts_once_and_with_its_last_numbers():
    audit = audited(recorded=0.5, replayed=0.25)
    audit.compare(3, {"reward": 0.5}, {"reward": 0.5})
    assert audit.report() == {"steps_compared": 1, "steps_equal": 1, "exact": True, "differences": {}}
