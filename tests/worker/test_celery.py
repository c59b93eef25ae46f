"""The whole way of a hint: dispatcher, Valkey, a Celery worker, a supervisor, a trainer. All of them real processes."""

import signal
from collections.abc import Iterator

import psutil
import pytest
from pydantic import SecretStr

from cli.valkey import Valkey
from core.status import JobStatus, StatusReason
from tests.factories import event_codes, read_job
from tests.polling import wait_until
from tests.worker.workshop import HAPPY, Workshop, is_running
from worker.dispatcher import MAX_WAITING, HintQueue
from worker.main import is_supervisor, make_celery

SERVING = [["baseline"], ["stage", "training"], ["serve"]]


@pytest.fixture
def valkey(workshop: Workshop) -> Iterator[Valkey]:
    """The test's own broker, so that it can be killed."""
    server = Valkey(workshop.folder / "valkey", log=workshop.folder / "valkey.log")
    server.start()
    server.wait_ready()
    workshop.set(broker_url=SecretStr(server.url), dispatch_poll_s=0.1, hint_repeat_s=2.0)
    yield server
    server.stop()


@pytest.fixture
def hints(valkey: Valkey, workshop: Workshop) -> Iterator[HintQueue]:
    queue = HintQueue(make_celery(workshop.settings))
    yield queue
    queue.close()


@pytest.fixture
def celery(valkey: Valkey, workshop: Workshop) -> psutil.Popen:
    """A worker that is ready for hints."""
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    process = workshop.start("celery", "-A", "worker.main", "worker", "--pool", "prefork", "--concurrency", "1", *quiet)
    wait_until(lambda: "ready." in workshop.log("celery").read_text(), what="the Celery worker is ready")
    return process


def supervisors(celery: psutil.Process) -> list[psutil.Process]:
    return [child for child in celery.children(recursive=True) if is_supervisor(child)]


def supervisors_ended(workshop: Workshop) -> int:
    return workshop.log("celery").read_text().count("supervisor_ended")


def test_queued_jobs_run_to_their_end_also_when_the_broker_dies_between_them(workshop: Workshop, valkey, celery):
    workshop.script(HAPPY)
    dispatcher = workshop.start("worker.dispatcher")
    first = workshop.queue()
    workshop.wait_for_status(first, JobStatus.SUCCEEDED)
    valkey.child.kill()
    second = workshop.queue()
    wait_until(lambda: "broker_unreachable" in workshop.log("worker.dispatcher").read_text(), what="it is missed")
    assert workshop.status(second) is JobStatus.QUEUED
    valkey.start()
    workshop.wait_for_status(second, JobStatus.SUCCEEDED)
    dispatcher.send_signal(signal.SIGTERM)
    assert dispatcher.wait(30) == 0
    celery.send_signal(signal.SIGTERM)
    assert celery.wait(30) == 0


def test_a_second_delivery_of_a_hint_starts_no_second_run(workshop: Workshop, hints, celery):
    workshop.script(HAPPY)
    job_id = workshop.queue()
    for _ in range(2):
        hints.send(job_id)
    wait_until(lambda: supervisors_ended(workshop) == 2, what="both hints are used up")
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.attempt, job.failures) == (JobStatus.SUCCEEDED, 1, 0)
    assert event_codes(workshop.sessions, job_id).count("claimed") == 1


def test_sigterm_to_the_worker_preempts_the_running_job_and_takes_no_other(workshop: Workshop, hints, celery):
    workshop.script(SERVING)
    running, waiting = workshop.queue(), workshop.queue()
    hints.send(running)
    hints.send(waiting)
    workshop.wait_for_step(running, 2)
    assert hints.room() == MAX_WAITING - 1, "a busy worker leaves the next hint to others"
    celery.send_signal(signal.SIGTERM)
    assert celery.wait(workshop.settings.stop_grace_s + 30) == 0
    job = read_job(workshop.sessions, running)
    assert (job.status, job.status_reason) == (JobStatus.QUEUED, StatusReason.PREEMPTED)
    assert (job.preemptions, job.durable_step) == (1, job.step)
    assert event_codes(workshop.sessions, waiting) == ["queued"]


@pytest.mark.parametrize("victim", ["main process", "pool child"])
def test_kill_9_inside_celery_preempts_the_job_instead_of_losing_it(workshop: Workshop, hints, celery, victim):
    workshop.script(SERVING)
    job_id = workshop.queue()
    hints.send(job_id)
    workshop.wait_for_step(job_id, 1)
    (supervisor,) = supervisors(celery)
    parent = supervisor.parent()
    assert parent is not None
    (celery if victim == "main process" else parent).kill()
    wait_until(lambda: not is_running(supervisor), what="the supervisor has left")
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.status_reason) == (JobStatus.QUEUED, StatusReason.PREEMPTED)
    assert job.durable_step == job.step
