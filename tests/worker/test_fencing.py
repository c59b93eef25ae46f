"""Real supervisor processes: told to stop, killed, frozen past their lease, cut off from the ledger or the store."""

import os
import signal
from pathlib import Path

import pytest
from sqlalchemy import make_url, select

from core import keys
from core.db import progress
from core.db.models import Job, now
from core.status import JobStatus, StatusReason
from tests.factories import claim, event_codes, queued_job, read_events, read_job
from tests.polling import wait_until
from tests.servers.tcp_proxy import running_proxy
from tests.worker.workshop import HAPPY, Workshop, is_running, trainer_of

SERVING = [["baseline"], ["stage", "training"], ["serve"]]
SOON_OVER = {"lease_ttl_s": 4.0, "lease_margin_s": 0.5}
SOON_FENCED = {"lease_ttl_s": 10.0, "lease_margin_s": 6.0}


@pytest.fixture
def proxied(workshop: Workshop):
    """The workshop's supervisors reach the ledger through this proxy; the test itself does not."""
    url = make_url(workshop.settings.database_url)
    with running_proxy(Path(str(url.query["host"]), ".s.PGSQL.5432")) as proxy:
        through = url.set(host="127.0.0.1", port=proxy.port, query={})
        workshop.set(database_url=through.render_as_string(hide_password=False))
        yield proxy


def lease_stands(workshop: Workshop, job_id: str) -> bool:
    with workshop.sessions() as session:
        return session.scalar(select(Job.lease_expires_at > now()).where(Job.id == job_id)) is True


def test_a_cancelled_run_stops_at_its_next_step_and_keeps_its_checkpoint(workshop: Workshop):
    workshop.script(SERVING)
    job_id = workshop.queue()
    supervisor = workshop.start_supervisor(job_id)
    workshop.wait_for_step(job_id, 2)
    workshop.cancel(job_id)
    assert supervisor.wait(60) == 0
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.status_reason) == (JobStatus.CANCELLED, StatusReason.USER_CANCELLED)
    assert (job.failures, job.preemptions, job.lease_owner) == (0, 0, None)
    assert job.durable_step == job.step
    assert f"Step {job.step} is durable" in read_events(workshop.sessions, job_id)[-1].message
    assert event_codes(workshop.sessions, job_id)[-3:] == ["cancel_requested", "checkpoint", "cancelled"]


def test_a_cancel_does_not_wait_for_a_store_that_is_away(workshop: Workshop):
    workshop.set(stop_grace_s=0.5)
    workshop.script(SERVING)
    job_id = workshop.queue()
    supervisor = workshop.start_supervisor(job_id)
    workshop.wait_for_step(job_id, 1)
    store = Path(workshop.settings.store_url.removeprefix("file://"))
    store.rename(store.with_name("away"))
    store.touch()  # a file where the folder was: every write fails
    workshop.cancel(job_id)
    assert supervisor.wait(60) == 0
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.durable_step) == (JobStatus.CANCELLED, None)
    assert "No checkpoint" in read_events(workshop.sessions, job_id)[-1].message


def test_a_trainer_that_ignores_the_wish_is_killed_after_the_grace(workshop: Workshop):
    workshop.set(stop_grace_s=0.5)
    workshop.script([["steps", 1], ["hang"]])
    job_id = workshop.queue()
    supervisor = workshop.start_supervisor(job_id)
    trainer = trainer_of(supervisor)
    workshop.wait_for_event(job_id, "hanging")
    workshop.cancel(job_id)
    assert supervisor.wait(60) == 0
    assert not is_running(trainer)
    assert workshop.status(job_id) is JobStatus.CANCELLED


def test_sigterm_saves_and_gives_the_job_back_at_once(workshop: Workshop):
    workshop.script(SERVING, [["stage", "training"], ["steps", 1], ["finish"]])
    job_id = workshop.queue()
    supervisor = workshop.start_supervisor(job_id)
    workshop.wait_for_step(job_id, 2)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(60) == 0
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.status_reason) == (JobStatus.QUEUED, StatusReason.PREEMPTED)
    assert (job.preemptions, job.failures) == (1, 0)
    assert (job.lease_owner, job.lease_expires_at, job.hinted_at) == (None, None, None)
    assert job.durable_step == job.step
    assert event_codes(workshop.sessions, job_id)[-2:] == ["checkpoint", "preempted"]
    workshop.supervise(job_id)
    assert workshop.event(job_id, "resumed") == {"step": job.step, "redone_steps": 0}
    assert workshop.status(job_id) is JobStatus.SUCCEEDED


def test_sigterm_does_not_wait_for_a_trainer_that_cannot_stop(workshop: Workshop):
    workshop.set(stop_grace_s=0.5)
    workshop.script([["steps", 3], ["hang"]])
    job_id = workshop.queue()
    supervisor = workshop.start_supervisor(job_id)
    workshop.wait_for_event(job_id, "hanging")
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(60) == 0
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.status_reason, job.durable_step) == (JobStatus.QUEUED, StatusReason.PREEMPTED, None)
    assert "No checkpoint had been made" in read_events(workshop.sessions, job_id)[-1].message


def test_sigterm_during_a_long_download_gives_the_job_back_without_waiting_for_it(workshop: Workshop):
    workshop.script(HAPPY)
    spec = workshop.spec()
    store = Path(workshop.settings.store_url.removeprefix("file://"))
    endless = store / keys.data_file(spec.training.file_id)
    endless.unlink()
    os.mkfifo(endless)  # whoever opens it waits in the kernel, for ever
    job_id = queued_job(workshop.sessions, spec=spec)
    supervisor = workshop.start_supervisor(job_id)
    wait_until((workshop.settings.runs_dir / job_id / "a0001/data").exists, what="the download has begun")
    supervisor.send_signal(signal.SIGTERM)
    workshop.wait_for_status(job_id, JobStatus.QUEUED)
    job = read_job(workshop.sessions, job_id)
    assert (job.status_reason, job.preemptions) == (StatusReason.PREEMPTED, 1)
    assert event_codes(workshop.sessions, job_id) == ["queued", "claimed", "preempted"]
    assert supervisor.wait(30) != 0, "although its main thread waits in the kernel"


def test_kill_9_of_the_supervisor_takes_the_trainer_down(workshop: Workshop):
    workshop.script(SERVING)
    job_id = workshop.queue()
    supervisor = workshop.start_supervisor(job_id)
    trainer = trainer_of(supervisor)
    workshop.wait_for_step(job_id, 1)
    supervisor.kill()
    wait_until(lambda: not is_running(trainer), what="the trainer is gone")
    assert workshop.status(job_id) is JobStatus.RUNNING, "nobody could say otherwise: the lease will"


def test_a_supervisor_that_slept_past_its_lease_writes_nothing_more(workshop: Workshop):
    workshop.set(**SOON_OVER)
    workshop.script(SERVING)
    job_id = workshop.queue()
    zombie = workshop.start_supervisor(job_id)
    trainer = trainer_of(zombie)
    workshop.wait_for_step(job_id, 1)
    zombie.suspend()
    second = wait_until(lambda: claim(workshop.sessions, job_id, owner="second"), what="the lease has run out")
    before = event_codes(workshop.sessions, job_id), len(workshop.steps(job_id))
    assert is_running(trainer), "it went on computing, without effect"
    zombie.resume()
    zombie.wait(60)
    assert not is_running(trainer)
    assert (event_codes(workshop.sessions, job_id), len(workshop.steps(job_id))) == before
    job = read_job(workshop.sessions, job_id)
    assert (job.attempt, job.lease_owner, second.attempt) == (2, "second", 2)


def test_a_supervisor_that_is_cut_off_kills_its_trainer_before_the_lease_ends(workshop: Workshop, proxied):
    workshop.set(**SOON_FENCED)
    workshop.script(SERVING)
    job_id = workshop.queue()
    supervisor = workshop.start_supervisor(job_id)
    trainer = trainer_of(supervisor)
    workshop.wait_for_step(job_id, 1)
    proxied.fall_silent()
    wait_until(lambda: not is_running(trainer), what="the trainer is gone")
    assert lease_stands(workshop, job_id)
    assert supervisor.wait(60) != 0, "although the call to the ledger that it is in never returns"
    assert workshop.status(job_id) is JobStatus.RUNNING


def test_a_ledger_that_is_silent_for_less_than_a_lease_costs_nothing(workshop: Workshop, proxied):
    go = workshop.folder / "go"
    workshop.script([["baseline"], ["steps", 2], ["wait_for_file", str(go)], ["steps", 3], ["checkpoint"], ["finish"]])
    job_id = workshop.queue()
    supervisor = workshop.start_supervisor(job_id)
    workshop.wait_for_step(job_id, 2)
    proxied.fall_silent()
    go.touch()
    run = workshop.settings.runs_dir / job_id / "a0001"
    wait_until((run / "outcome.json").exists, what="the trainer has finished")
    proxied.speak()
    assert supervisor.wait(60) == 0
    assert workshop.status(job_id) is JobStatus.SUCCEEDED
    assert [step.step for step in workshop.steps(job_id)] == [1, 2, 3, 4, 5]


def test_a_worker_whose_clock_is_a_day_ahead_keeps_and_loses_its_lease_as_any_other(workshop: Workshop, tmp_path: Path):
    """Leases and what a run does live by the database's clock, deadlines by the monotonic one."""
    (tmp_path / "sitecustomize.py").write_text("import time\nreal = time.time\ntime.time = lambda: real() + 86_400\n")
    workshop.set(**SOON_OVER)
    workshop.script(SERVING)
    job_id = workshop.queue()
    skewed = workshop.start_supervisor(job_id, PYTHONPATH=str(tmp_path))
    workshop.wait_for_step(job_id, 1)
    for _ in range(3):
        ends_at = read_job(workshop.sessions, job_id).lease_expires_at
        wait_until(
            lambda before=ends_at: read_job(workshop.sessions, job_id).lease_expires_at > before, what="a renewal"
        )
    with workshop.sessions() as session:
        activity, at = read_job(workshop.sessions, job_id).activity, progress.clock(session)
    assert activity is not None
    assert at.timestamp() - 3600 < activity["since"] <= at.timestamp()
    assert claim(workshop.sessions, job_id, owner="second") is None
    skewed.suspend()
    wait_until(lambda: claim(workshop.sessions, job_id, owner="second"), what="the lease has run out")
    skewed.resume()
    skewed.wait(60)
    assert read_job(workshop.sessions, job_id).lease_owner == "second"


def wait_for_renewal(workshop: Workshop, job_id) -> None:
    ends_at = read_job(workshop.sessions, job_id).lease_expires_at
    wait_until(lambda: read_job(workshop.sessions, job_id).lease_expires_at > ends_at, what="a renewal")


def test_a_claim_that_meets_no_ledger_leaves_the_job_to_the_next_hint(workshop: Workshop, proxied):
    job_id = workshop.queue()
    proxied.fall_silent()
    supervisor = workshop.start_supervisor(job_id)
    assert supervisor.wait(60) == 0
    assert "ledger_unreachable" in workshop.log("worker.supervisor").read_text()
    proxied.speak()
    assert workshop.status(job_id) is JobStatus.QUEUED


def test_connections_that_the_ledger_drops_cost_nothing(workshop: Workshop, ledger_cleaner):
    workshop.script(SERVING)
    job_id = workshop.queue()
    supervisor = workshop.start_supervisor(job_id)
    workshop.wait_for_step(job_id, 1)
    for _ in range(5):
        ended = ledger_cleaner.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
        assert ended
        step = read_job(workshop.sessions, job_id).step
        workshop.wait_for_step(job_id, step + 3)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(60) == 0
    steps = [step.step for step in workshop.steps(job_id)]
    assert steps == list(range(1, len(steps) + 1))
    event_codes(workshop.sessions, job_id)


def test_a_store_that_is_broken_for_a_while_stops_neither_training_nor_the_checkpoint(workshop: Workshop):
    go = workshop.folder / "go"
    workshop.script([["baseline"], ["steps", 2], ["checkpoint"], ["wait_for_file", str(go)], ["steps", 2], ["finish"]])
    job_id = workshop.queue()
    store = Path(workshop.settings.store_url.removeprefix("file://"))
    supervisor = workshop.start_supervisor(job_id)
    trainer_of(supervisor)
    hidden = store.rename(store.with_name("hidden"))
    store.write_text("a file where the folder should be")
    workshop.wait_for_step(job_id, 2)
    go.touch()
    workshop.wait_for_step(job_id, 4)
    assert read_job(workshop.sessions, job_id).durable_step is None
    store.unlink()
    hidden.rename(store)
    assert supervisor.wait(60) == 0
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.durable_step) == (JobStatus.SUCCEEDED, 2)


def test_a_happy_run_in_a_process_of_its_own_ends_with_zero(workshop: Workshop):
    workshop.script(HAPPY)
    job_id = workshop.queue()
    assert workshop.start_supervisor(job_id).wait(60) == 0
    assert workshop.status(job_id) is JobStatus.SUCCEEDED
