"""The table of changes, and what follows from it."""

from hypothesis import given
from hypothesis import strategies as st

from core.status import TRANSITIONS, JobStatus

TERMINAL = {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED}


def reachable(start: JobStatus) -> set[JobStatus]:
    found: set[JobStatus] = set()
    waiting = [start]
    while waiting:
        for target in TRANSITIONS[waiting.pop()] - found:
            found.add(target)
            waiting.append(target)
    return found


def test_the_table_speaks_of_every_status():
    assert set(TRANSITIONS) == set(JobStatus)


def test_exactly_the_three_endings_are_terminal():
    assert {status for status in JobStatus if status.is_terminal} == TERMINAL


def test_no_status_changes_into_itself():
    assert all(status not in TRANSITIONS[status] for status in JobStatus)


def test_every_status_but_the_first_can_be_reached():
    assert reachable(JobStatus.VALIDATING_FILES) == set(JobStatus) - {JobStatus.VALIDATING_FILES}


def test_whoever_is_not_at_an_end_can_still_be_cancelled():
    assert all(JobStatus.CANCELLED in TRANSITIONS[status] for status in JobStatus if not status.is_terminal)


def test_only_a_worker_makes_a_job_succeed():
    assert [status for status in JobStatus if JobStatus.SUCCEEDED in TRANSITIONS[status]] == [JobStatus.RUNNING]


@given(st.lists(st.sampled_from(JobStatus)))
def test_no_walk_leaves_a_terminal_status(wishes: list[JobStatus]):
    status, ended = JobStatus.VALIDATING_FILES, None
    for wish in wishes:
        if wish in TRANSITIONS[status]:
            status = wish
        if status in TERMINAL:
            ended = ended or status
    assert ended is None or status is ended
