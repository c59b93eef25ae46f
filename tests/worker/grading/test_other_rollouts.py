"""What a reward finds in its process of rollouts that it was not called with: what `docs/security.md` says, no more.

A spy goes through all that Python can reach from its frames, its modules and the collector's lists.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.grading import client
from worker.grading.client import Grader, Rollout

SPY = '''
import gc
import sys
import types

def spy():
    """Every text with a mark in it that can be reached."""
    todo, known, found = [sys._current_frames(), dict(sys.modules), gc.get_objects()], set(), set()
    frame = sys._getframe(1)
    while frame is not None:
        todo += [frame.f_locals, frame.f_globals]
        frame = frame.f_back
    while todo:
        each = todo.pop()
        if id(each) in known:
            continue
        known.add(id(each))
        if isinstance(each, (str, bytes, bytearray)):
            text = each if isinstance(each, str) else bytes(each).decode("latin-1")
            found |= {word for word in text.split() if word.startswith("mark-") and word != "mark-"}
        else:
            todo += gc.get_referents(each)
    return ",".join(sorted(found))
'''
PER_SAMPLE = f"""
{SPY}
def reward(completion, gold):
    return {{"score": 1.0, "seen": spy()}} if "look" in completion else 0.0
"""
KEEPING = f"""
{SPY}
KEPT = []
def reward(completion, gold):
    KEPT.append(gold)
    return {{"score": 1.0, "seen": spy()}} if "look" in completion else 0.0
"""
BATCH = f"""
{SPY}
def reward(completions, gold, log_extra, **_):
    log_extra("seen", [" ".join(gold)] * len(gold))
    return [1.0] * len(gold)
"""


def rollout(name: str, *, look: bool = False) -> Rollout:
    """With marks in each of its parts; `mark-*-hidden` stands in a column that no reward names."""
    completion = f"mark-{name}-answer {'look' if look else ''}"
    columns = {"gold": f"mark-{name}-gold", "private": f"mark-{name}-hidden"}
    return Rollout(f"mark-{name}-prompt", completion, [1, 2], columns)


@pytest.fixture
def grader(tmp_path: Path) -> Iterator[Grader]:
    source = tmp_path / "reward.py"
    source.write_text(PER_SAMPLE)
    with Grader(source, batch_deadline_s=60.0, item_deadline_s=30.0) as grader:
        yield grader


def seen(grader: Grader, *rollouts: Rollout) -> set[str]:
    """What the first spy that looks finds."""
    grades = grader.grade(rollouts)
    (found, *_) = [grade.extra["seen"] for grade in grades if "seen" in grade.extra]
    return set(str(found).split(","))


def test_in_the_per_sample_forms_the_other_rollouts_of_a_request_can_be_found(grader: Grader) -> None:
    """Both with their answer and all their columns."""
    found = seen(grader, rollout("own", look=True), rollout("other"))
    parts = ("answer", "gold", "hidden")
    assert found == {f"mark-{name}-{part}" for name in ("own", "other") for part in parts}


def test_those_of_other_requests_cannot_and_no_prompt_that_was_not_asked_for(
    grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MOST_AT_ONCE", 2)
    grader.grade([rollout("earlier"), rollout("earliest")])
    found = seen(grader, rollout("own", look=True), rollout("other"), rollout("later"), rollout("last"))
    assert found, "the spy can see"
    assert {mark.split("-")[1] for mark in found} == {"own", "other"}
    assert not [mark for mark in found if mark.endswith("prompt")]


def test_what_a_reward_keeps_itself_it_keeps(tmp_path: Path) -> None:
    source = tmp_path / "reward.py"
    source.write_text(KEEPING)
    with Grader(source, batch_deadline_s=60.0, item_deadline_s=30.0) as grader:
        grader.grade([rollout("earlier"), rollout("earliest")])
        found = seen(grader, rollout("own", look=True))
    assert {mark for mark in found if "earl" in mark} == {"mark-earlier-gold", "mark-earliest-gold"}


def test_a_batch_function_is_given_the_columns_of_its_whole_batch(tmp_path: Path) -> None:
    """TRL's own form: it grades by comparison."""
    source = tmp_path / "reward.py"
    source.write_text(BATCH)
    with Grader(source) as grader:
        grades = grader.grade([rollout("a"), rollout("b")])
    assert [grade.extra["seen"] for grade in grades] == ["mark-a-gold mark-b-gold"] * 2


def test_another_term_of_the_same_job_has_a_process_of_its_own(grader: Grader, tmp_path: Path) -> None:
    with Grader(tmp_path / "reward.py", batch_deadline_s=60.0, item_deadline_s=30.0) as other:
        other.grade([rollout("theirs"), rollout("theirs")])
        assert {mark.split("-")[1] for mark in seen(grader, rollout("own", look=True))} == {"own"}
