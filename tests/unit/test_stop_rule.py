"""When a run ends before its last step, by the job's own rule."""

import pytest

from core.spec import StopSpec
from worker.training.stop_rule import Silence, judge_patience, judge_silence


def silence(*shares: float, window: int = 5, has_warned: bool = False) -> Silence:
    found = Silence(has_warned=has_warned)
    for share in shares:
        found.add(share, window=window)
    return found


RULE = StopSpec(silent_share_above=0.9, window=5, then="pause")


@pytest.mark.parametrize(
    ("shares", "is_over"),
    [
        ([1.0] * 5, True),
        ([1.0] * 4, False),
        ([0.9] * 5, False),
        ([0.0] * 20 + [1.0] * 5, True),
        ([1.0] * 20 + [0.0, 1.0, 1.0, 1.0, 1.0], False),
    ],
)
def test_silence_counts_once_it_fills_the_window(shares: list[float], is_over: bool):
    assert (judge_silence(RULE, silence(*shares)) is not None) is is_over


def test_the_ruling_says_what_was_counted_and_what_the_limit_is():
    ruling = judge_silence(RULE, silence(*[1.0] * 5))
    assert ruling is not None
    assert ruling.then == "pause"
    assert "100.0% of the groups of the last 5 steps" in ruling.sentence
    assert "limit is 90.0%" in ruling.sentence


def test_without_a_limit_silence_ends_nothing():
    assert judge_silence(StopSpec(window=5), silence(*[1.0] * 5)) is None


def test_a_warning_is_given_once():
    assert judge_silence(RULE, silence(*[1.0] * 5, has_warned=True)) is None


def test_after_a_pause_a_whole_new_window_is_needed():
    paused = silence(*[1.0] * 5)
    paused.begin_anew()
    for step in range(5):
        assert judge_silence(RULE, paused) is None, f"after {step} steps"
        paused.add(1.0, window=5)
    assert judge_silence(RULE, paused) is not None


@pytest.mark.parametrize(
    ("scores", "is_over"),
    [
        ([0.5, 0.4, 0.3], True),
        ([0.5, 0.4], False),
        ([0.5, 0.6, 0.55, 0.59], True),
        ([0.5, 0.6, 0.55, 0.61], False),
        ([0.5, 0.5, 0.5], True),
        ([0.5, None, 0.4], False),
        ([], False),
    ],
)
def test_patience_ends_after_so_many_evaluations_without_a_new_best(scores: list[float | None], is_over: bool):
    ruling = judge_patience(StopSpec(held_out_patience=2), scores)
    assert (ruling is not None) is is_over
    assert ruling is None or ruling.then == "stop"


def test_without_patience_set_training_goes_on():
    assert judge_patience(StopSpec(), [0.9, 0.1, 0.1, 0.1]) is None
