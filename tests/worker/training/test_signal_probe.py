"""Signal probes for real: a toy model samples, rewards grade, nothing is trained."""

import os
import signal
from typing import Any

from core.signal_report import AdviceCode, FlatCause, FlatReason, ProbeSize, SignalReport
from core.spec import Gate
from core.status import Stage
from tests.polling import wait_until
from tests.worker.training.runs import Ended, Trainers, failed_with, toy_rows
from worker.run_directory import STOPPED_EXIT_CODE, Notice, StageStarted

KINDS = ["easy", "letters", "hard", "partial", "broken", "letters", "silent", "letters"]
BY_KIND = """
def reward(completion, want, kind):
    print(kind)
    if kind == "broken":
        raise ValueError("no luck with " + want)
    flat = {"easy": 1.0, "hard": 0.0, "partial": 0.1, "silent": None}
    return flat[kind] if kind in flat else sum(letter in want for letter in completion) / 10
"""
GATED = {
    "form": "def reward(completion):\n    return float('a' in completion)\n",
    "parse": "def reward(completion):\n    return 1.0 / (1 + completion.index('a'))\n",
}
LAYOUT: dict[str, Any] = {
    "rows": [{**row, "kind": kind} for row, kind in zip(toy_rows(len(KINDS)), KINDS, strict=True)],
    "held_out": [{**row, "kind": "letters"} for row in toy_rows(4)],
    "rewards": {"by_kind": BY_KIND},
}


def report_of(ended: Ended) -> SignalReport:
    assert ended.exit_code == 0, ended.log
    report = ended.outcome.report
    assert report is not None
    return report


def timeless(report: SignalReport) -> SignalReport:
    return report.model_copy(update={"time": None})


def test_a_probe_tells_flat_groups_from_those_with_signal_and_why(trainers: Trainers) -> None:
    ended = trainers.train("probed", probe=ProbeSize(prompts=32, samples=6), **LAYOUT)
    report = report_of(ended)
    reasons = {group.row: group.flat for group in report.groups}
    assert {row: reason for row, reason in reasons.items() if KINDS[row - 1] != "letters"} == {
        1: FlatReason.ALL_PASSED,
        3: FlatReason.ALL_FAILED,
        4: FlatReason.ALL_EQUAL_PARTIAL,
        5: FlatReason.UNGRADED,
        7: FlatReason.UNGRADED,
    }
    assert reasons[2] is None, "letters of six random texts are not all the same"
    assert (report.prompts, report.training_rows, report.samples, report.num_generations) == (8, 8, 6, 4)
    assert (report.graded_groups, report.ungraded) == (6, 12)
    assert report.silent_groups == sum(reasons[row] is not None for row in (1, 2, 3, 4, 6, 8)) >= 3
    assert report.truncated_share > 0
    assert all(1 <= group.mean_completion_tokens <= 8 for group in report.groups)
    (graded,) = report.rewards
    assert (graded.name, graded.scored, graded.no_answer, graded.user_errors) == ("by_kind", 36, 6, 6)
    assert graded.last_error is not None
    assert "no luck with" in graded.last_error
    assert report.advice[0].code is AdviceCode.GRADING_ERRORS
    assert 0 < report.time.evaluation < report.time.total
    assert report.environment.device == "cpu"


def test_a_probe_trains_nothing_and_leaves_only_its_report(trainers: Trainers) -> None:
    ended = trainers.train("probed-only", probe=ProbeSize(prompts=4, samples=2), **LAYOUT)
    report_of(ended)
    assert ended.outcome.summary is None
    assert [entry.stage for entry in ended.entries(StageStarted)] == [Stage.PREPARING, Stage.PROBING]
    assert [entry.code for entry in ended.entries(Notice)] == ["grader_output"], "what rewards print is told"
    assert not ended.run.adapter.exists()
    assert list(ended.run.path.glob("checkpoints/*")) == list(ended.run.path.glob("evaluations/*")) == []


def test_the_same_probe_finds_the_same_to_the_last_bit(trainers: Trainers) -> None:
    size = ProbeSize(prompts=3, samples=16)
    first = report_of(trainers.train("probed-once", probe=size, **LAYOUT))
    again = report_of(trainers.train("probed-again", probe=size, **LAYOUT))
    assert timeless(first) == timeless(again)
    assert len(first.groups) == 3
    assert [group.row for group in first.groups] == sorted(group.row for group in first.groups)


def test_a_cold_model_is_told_from_a_hopeless_prompt(trainers: Trainers) -> None:
    """Next to no temperature: each group is one text over and over."""
    layout = {**LAYOUT, "hyperparameters": {"temperature": 0.001}}
    report = report_of(trainers.train("probed-cold", probe=ProbeSize(prompts=8, samples=4), **layout))
    assert report.causes[FlatCause.IDENTICAL_COMPLETIONS] == 8
    assert AdviceCode.SAMPLING_COLLAPSED in {advice.code for advice in report.advice}


def test_a_branch_is_probed_with_the_weights_that_it_would_begin_with(trainers: Trainers, plain: Ended) -> None:
    size = ProbeSize(prompts=5, samples=8)
    base = report_of(trainers.train("probed-base", probe=size))
    branch = report_of(trainers.train("probed-branch", probe=size, start=(plain.run, 6)))
    assert [group.row for group in base.groups] == [group.row for group in branch.groups]
    assert base.mean_reward is not None
    assert branch.mean_reward is not None
    assert branch.mean_reward > base.mean_reward, "the other job had learned for six steps"


def gated(trainers: Trainers, name: str, probe: ProbeSize | None) -> Ended:
    """`parse` raises on every completion without an "a" in it, and counts only where `form` finds one."""
    run = trainers.lay_out(name, probe=probe, rewards=GATED)
    plan = run.read_plan()
    form, parse = plan.spec.rewards
    terms = (form, parse.model_copy(update={"gate": Gate(reward="form")}))
    run.create(plan.model_copy(update={"spec": plan.spec.model_copy(update={"rewards": terms})}))
    return trainers.finish(run, trainers.start(run))


def test_a_job_whose_gate_catches_errors_is_not_told_that_it_would_pause_and_does_not(trainers: Trainers) -> None:
    report = report_of(gated(trainers, "probed-gated", ProbeSize(prompts=5, samples=8)))
    _, parse = report.rewards
    assert parse.user_errors > 0.2 * 40, "more than the job may fail on"
    assert (report.failed, report.ungraded, parse.blanked) == (0, 0, 0)
    codes = {advice.code for advice in report.advice}
    assert AdviceCode.GATED_ERRORS in codes
    assert AdviceCode.GRADING_ERRORS not in codes
    job = gated(trainers, "trained-gated", None)
    assert job.exit_code == 0, job.log


def test_a_reward_that_takes_its_process_along_each_time_is_tried_by_another_attempt(trainers: Trainers) -> None:
    fatal = "import os\n\ndef reward(completion, want):\n    os._exit(3)\n"
    ended = trainers.train("probed-fatal", probe=ProbeSize(prompts=1, samples=2), rewards={"fatal": fatal})
    assert "Not one completion could be graded" in failed_with(ended, "grader_failed")
    assert ended.outcome.failure is not None
    assert ended.outcome.failure.retryable


def test_told_to_go_a_probe_leaves_at_once_and_has_nothing_to_save(trainers: Trainers) -> None:
    layout = {**LAYOUT, "hyperparameters": {"max_completion_length": 100}}
    run = trainers.lay_out("probed-stopped", probe=ProbeSize(prompts=8, samples=64), **layout)
    process = trainers.start(run)
    wait_until(lambda: (pulse := run.read_pulse()) and pulse.phase == "evaluation", what="the sampling")
    os.kill(process.pid or 0, signal.SIGTERM)
    stopped = trainers.finish(run, process)
    assert (stopped.exit_code, stopped.outcome.kind, stopped.outcome.step) == (STOPPED_EXIT_CODE, "stopped", 0)
