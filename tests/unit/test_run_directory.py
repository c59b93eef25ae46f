"""The folder between supervisor and trainer: what a reader sees while a writer writes."""

import json
import math
import threading
from pathlib import Path

import pytest
from pydantic import ValidationError

from core.status import Stage
from core.strict_json import json_number
from tests.factories import make_spec
from tests.unit.test_verdict import RIGHT, WRONG, evaluation
from worker.files import tail, write_atomically
from worker.run_directory import (
    Notice,
    Outcome,
    RunDirectory,
    RunPlan,
    RunUnreadable,
    StageStarted,
    StepDone,
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def laid_out(run: RunDirectory) -> RunDirectory:
    run.create(RunPlan(job_id="ftjob-1", attempt=2, spec=make_spec(), model_path=Path("/models/x"), resume_step=3))
    return run


def step(number: int, **metrics: float | None) -> StepDone:
    return StepDone(at=1.0, step=number, metrics=metrics)


def test_the_plan_comes_back_as_it_was_written(laid_out):
    plan = laid_out.read_plan()
    assert (plan.job_id, plan.attempt, plan.resume_step, plan.model_path) == ("ftjob-1", 2, 3, Path("/models/x"))
    assert plan.spec.rewards == make_spec().rewards


def test_entries_are_read_in_order_each_with_the_offset_behind_it(laid_out):
    entries = [StageStarted(at=1.0, stage=Stage.TRAINING), step(1, reward=0.5), Notice(at=2.0, code="x", message="é")]
    for entry in entries:
        laid_out.append(entry)
    read = list(laid_out.read_journal())
    assert [entry for entry, _ in read] == entries
    assert read[-1][1] == laid_out.journal.stat().st_size
    assert [entry for entry, _ in laid_out.read_journal(read[0][1])] == entries[1:]
    assert list(laid_out.read_journal(read[-1][1])) == []


def test_a_run_that_has_not_spoken_has_no_entries(laid_out):
    assert list(laid_out.read_journal()) == []


def test_a_torn_last_line_is_not_read_until_it_is_whole(laid_out):
    laid_out.append(step(1))
    line = step(2).model_dump_json().encode() + b"\n"
    for end in range(len(line)):
        with laid_out.journal.open("ab") as journal:
            journal.write(line[end : end + 1])
        read = [entry.step for entry, _ in laid_out.read_journal()]
        assert read == ([1, 2] if end == len(line) - 1 else [1])


def test_a_line_that_nobody_here_knows_is_named(laid_out):
    laid_out.append(step(1))
    with laid_out.journal.open("a") as journal:
        journal.write('{"kind": "hologram", "at": 1.0}\n')
    entries = laid_out.read_journal()
    next(entries)
    with pytest.raises(RunUnreadable, match=r"journal\.jsonl of the run cannot be read"):
        next(entries)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_becomes_null(laid_out, value):
    laid_out.append(step(1, loss=value, reward=0.5))
    laid_out.append(Notice(at=1.0, code="x", message="x", data={"grad_norm": value}))
    (first, _), (second, _) = laid_out.read_journal()
    assert first.metrics == {"loss": None, "reward": 0.5}
    assert second.data == {"grad_norm": None}
    assert json_number(value) is None
    assert json_number(0.25) == 0.25


def test_an_outcome_is_there_whole_or_not_at_all(laid_out):
    assert laid_out.read_outcome() is None
    laid_out.write_outcome(Outcome(kind="stopped", step=4))
    assert laid_out.read_outcome() == Outcome(kind="stopped", step=4)
    (laid_out.path / "outcome.json").write_text('{"kind": "stop')
    with pytest.raises(RunUnreadable, match=r"outcome\.json"):
        laid_out.read_outcome()


@pytest.mark.parametrize("kind", ["finished", "failed"])
def test_an_outcome_without_its_reasons_is_none(kind):
    with pytest.raises(ValidationError, match=f"a {kind} run"):
        Outcome(kind=kind, step=4)


def test_a_baseline_laid_out_for_the_trainer_is_the_one_it_reads(laid_out):
    baseline = evaluation([RIGHT, WRONG])
    assert laid_out.read_evaluation("baseline") is None
    laid_out.write_evaluation("baseline", baseline)
    assert laid_out.read_evaluation("baseline") == baseline


def test_an_atomic_write_replaces_the_whole_file_and_leaves_no_draft(tmp_path):
    target = tmp_path / "deep" / "file.json"
    write_atomically(target, "a long first text")
    write_atomically(target, "short")
    assert target.read_text() == "short"
    assert [path.name for path in target.parent.iterdir()] == ["file.json"]


def test_a_write_that_fails_leaves_the_old_file_as_it_was(tmp_path):
    target = tmp_path / "file.json"
    write_atomically(target, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(target, "new \ud800")
    assert target.read_text() == "old"


def test_two_threads_that_write_the_same_file_have_a_draft_each(tmp_path):
    """A write that fails leaves its draft, so that their names show."""

    def fail() -> None:
        with pytest.raises(UnicodeEncodeError):
            write_atomically(tmp_path / "file.json", "new \ud800")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    fail()
    assert len(list(tmp_path.iterdir())) == 2


def test_clearing_keeps_what_somebody_may_ask_for(laid_out):
    laid_out.append(step(1))
    laid_out.write_outcome(Outcome(kind="stopped", step=1))
    laid_out.write_evaluation("baseline", evaluation([RIGHT]))
    laid_out.clear()
    assert sorted(path.name for path in laid_out.path.iterdir()) == ["outcome.json", "spec.json"]
    RunDirectory(laid_out.path / "never-made").clear()


def test_the_tail_of_a_log_is_its_last_lines_whatever_the_bytes(tmp_path):
    log = tmp_path / "trainer.log"
    assert tail(log) == ""
    log.write_bytes(b"\xff\xfe first\n" + b"\n".join(b"line %d" % number for number in range(10_000)))
    lines = tail(log, lines=3).splitlines()
    assert lines == ["line 9997", "line 9998", "line 9999"]
    assert len(tail(log, lines=100_000)) <= 16_384


def test_the_plan_is_readable_json(laid_out):
    assert json.loads((laid_out.path / "spec.json").read_text())["spec"]["seed"] == 42
