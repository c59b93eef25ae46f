"""From what a trainer left to what happened."""

import signal

import pytest

from bench._chaos.samples import make_summary
from core.errors import InvalidReward, NotFound
from core.status import StatusReason
from core.storage.store import DigestMismatch, ObjectNotFound, StoreMisconfigured, StoreUnavailable
from worker.endings import Ending, EndingKind, Wished, name_ending
from worker.inputs import ModelGone
from worker.run_directory import FailureDetail, Outcome, RunDirectory, RunUnreadable

FAILURE = FailureDetail(reason=StatusReason.OUT_OF_MEMORY, code="cuda_oom", message="Out of memory.", retryable=True)
FINISHED = Outcome(kind="finished", step=4, summary=make_summary(4))
STOPPED = Outcome(kind="stopped", step=4)
FAILED = Outcome(kind="failed", step=4, failure=FAILURE)


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def ending(run, outcome: Outcome | None, exit_code: int = 0, *, preempted=False, cancelled=False) -> Ending:
    if outcome is not None:
        run.write_outcome(outcome)
    return name_ending(run, exit_code, Wished(preempted=preempted, cancelled=cancelled))


@pytest.mark.parametrize("preempted", [True, False])
@pytest.mark.parametrize("cancelled", [True, False])
def test_a_finish_is_a_finish_whatever_was_wished_meanwhile(run, preempted, cancelled):
    found = ending(run, FINISHED, preempted=preempted, cancelled=cancelled)
    assert (found.kind, found.summary) == (EndingKind.FINISHED, FINISHED.summary)


@pytest.mark.parametrize("outcome", [STOPPED, FAILED, None])
@pytest.mark.parametrize(
    ("wish", "kind"),
    [
        ({"cancelled": True}, EndingKind.CANCELLED),
        ({"preempted": True}, EndingKind.PREEMPTED),
        ({"cancelled": True, "preempted": True}, EndingKind.CANCELLED),
    ],
)
def test_a_wish_explains_every_other_end(run, outcome, wish, kind):
    assert ending(run, outcome, -signal.SIGKILL, **wish).kind is kind


def test_a_stop_that_nobody_here_asked_for_was_the_machines(run):
    assert ending(run, STOPPED, 75).kind is EndingKind.PREEMPTED


def test_a_failure_that_the_trainer_explains_is_taken_at_its_word(run):
    found = ending(run, FAILED, 70)
    assert (found.kind, found.failure) == (EndingKind.FAILED, FAILURE)


@pytest.mark.parametrize(("code", "words"), [(3, "exit code 3"), (-9, "signal 9"), (0, "exit code 0")])
def test_an_end_without_a_word_is_a_crash_with_the_logs_last_lines(run, code, words):
    run.log.write_text("Traceback\nRuntimeError: boom\n")
    failure = ending(run, None, code).failure
    assert failure is not None
    assert (failure.reason, failure.retryable) == (StatusReason.TRAINER_CRASHED, True)
    assert words in failure.message
    assert failure.message.endswith("RuntimeError: boom")


@pytest.mark.parametrize(
    ("error", "reason", "retryable"),
    [
        (StoreUnavailable("away"), StatusReason.STORE_FAILED, True),
        (StoreMisconfigured("forbidden"), StatusReason.STORE_FAILED, False),
        (ObjectNotFound("gone"), StatusReason.DATA_UNUSABLE, False),
        (DigestMismatch("changed"), StatusReason.DATA_UNUSABLE, False),
        (NotFound("gone"), StatusReason.DATA_UNUSABLE, False),
        (ModelGone("gone"), StatusReason.MODEL_UNUSABLE, True),
        (InvalidReward("changed"), StatusReason.GRADER_FAILED, False),
        (RunUnreadable("odd"), StatusReason.WORKER_UNFIT, True),
    ],
)
def test_a_refusal_keeps_the_errors_code_and_names_its_reason(error, reason, retryable):
    failure = Ending.refused(error).failure
    assert failure is not None
    assert (failure.reason, failure.retryable, failure.code) == (reason, retryable, error.code)
    assert failure.message == error.message
