"""Which jobs workers are told of, how often, and what happens to the hints when the broker is away or full."""

import base64
import json
from collections import Counter
from datetime import timedelta
from inspect import signature

import pytest
import redis
from kombu import Connection
from pydantic import SecretStr

from cli.valkey import Valkey
from core.db import jobs
from core.db.models import Job
from core.queue import TRAIN_QUEUE, train_queue
from core.settings import Settings
from core.spec import ResourcesSpec
from core.status import JobKind, JobStatus
from tests.factories import claimed, expire, make_spec, put_into, queued_job, read_job
from tests.ports import free_port
from tests.threads import race
from worker.dispatcher import MAX_WAITING, HintQueue, dispatch
from worker.main import make_celery

TAKEN_WITHIN_S = 35
"""Of the broker's return, for whatever is queued then, as is promised."""
STARTED_S = 4
"""What that leaves for the supervisor: a hint in the queue, a worker at it, a process that claims."""


class DyingBroker:
    """Takes one hint, and is gone."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def for_gpus(self, gpus: int) -> "DyingBroker":
        return self

    def room(self) -> int:
        return 10

    def send(self, job_id) -> None:
        if self.sent:
            raise redis.ConnectionError
        self.sent.append(job_id)


def due(sessions, *, hint_repeat_s: float = 30, limit: int = 100):
    with sessions.begin() as session:
        return list(jobs.due(session, hint_repeat_s=hint_repeat_s, limit=limit))


@pytest.fixture
def broker(valkey_url):
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
        yield client


@pytest.fixture
def hints(valkey_url, settings, broker):
    queue = HintQueue(make_celery(settings.model_copy(update={"broker_url": SecretStr(valkey_url)})))
    yield queue
    queue.close()


def test_a_queued_job_is_due_once_within_the_interval(sessions):
    job_id = queued_job(sessions)
    assert due(sessions) == [job_id]
    assert due(sessions) == []
    assert read_job(sessions, job_id).hinted_at is not None


def test_a_job_that_nobody_took_is_due_again_after_the_interval(sessions):
    job_id = queued_job(sessions)
    assert due(sessions, hint_repeat_s=0.001) == [job_id]
    assert due(sessions, hint_repeat_s=0.001) == [job_id]


def test_a_running_job_is_due_only_when_its_lease_has_run_out(sessions):
    lease = claimed(sessions)
    assert due(sessions) == []
    expire(sessions, lease.job_id)
    assert due(sessions) == [lease.job_id]


@pytest.mark.parametrize("status", [s for s in JobStatus if s not in (JobStatus.QUEUED, JobStatus.RUNNING)])
def test_no_other_job_is_due(sessions, status):
    put_into(sessions, status)
    assert due(sessions) == []


def test_the_oldest_jobs_come_first(sessions):
    job_ids = [queued_job(sessions) for _ in range(4)]
    assert due(sessions, limit=3) == job_ids[:3]
    assert due(sessions, limit=3) == job_ids[3:]


def test_dispatchers_that_look_at_once_share_the_jobs_and_tell_of_each_one_time(sessions):
    job_ids = [queued_job(sessions) for _ in range(20)]
    shares = race(4, lambda _: due(sessions))
    assert Counter(job_id for share in shares for job_id in share) == Counter(job_ids)


def test_a_job_that_another_dispatcher_is_about_to_tell_of_is_passed_over_without_waiting(sessions):
    first, second = queued_job(sessions), queued_job(sessions)
    with sessions.begin() as session:
        assert list(jobs.due(session, hint_repeat_s=30, limit=1)) == [first]
        assert due(sessions) == [second]


def test_a_hint_carries_the_id_of_the_job_to_the_queue(sessions, settings, hints, broker):
    job_id = queued_job(sessions)
    assert dispatch(sessions, hints, settings) == 1
    (message,) = broker.lrange(TRAIN_QUEUE, 0, -1)
    arguments = base64.b64decode(json.loads(message)["body"])  # Celery's message protocol 2
    assert json.loads(arguments)[0] == [job_id]


def test_hints_reach_the_queue_after_the_broker_was_flushed(sessions, settings, hints, broker):
    queued_job(sessions)
    dispatch(sessions, hints, settings)
    broker.flushall()
    queued_job(sessions)
    assert dispatch(sessions, hints, settings) == 1
    assert broker.llen(TRAIN_QUEUE) == 1


def test_a_hint_that_was_flushed_is_sent_again_after_the_interval(sessions, settings, hints, broker):
    job_id = queued_job(sessions)
    dispatch(sessions, hints, settings)
    broker.flushall()
    assert dispatch(sessions, hints, settings) == 0
    with sessions.begin() as session:
        jobs.get(session, job_id).hinted_at -= timedelta(seconds=settings.hint_repeat_s)
    assert dispatch(sessions, hints, settings) == 1
    assert broker.llen(TRAIN_QUEUE) == 1


def test_the_shipped_intervals_keep_what_is_promised_of_the_brokers_return():
    """Lost hints are sent again while the workers find their way back: the slower of the two counts."""
    hinted_s = sum(Settings.model_fields[name].default for name in ("hint_repeat_s", "dispatch_poll_s"))
    connected_s = signature(Connection._ensure_connection).parameters["interval_max"].default
    assert make_celery(Settings()).conf.broker_connection_max_retries is None, "it never gives up"
    assert max(hinted_s, connected_s) + STARTED_S <= TAKEN_WITHIN_S


def test_hints_flow_again_once_the_broker_is_back(sessions, settings, tmp_path):
    server = Valkey(tmp_path / "valkey", log=tmp_path / "valkey.log")
    server.start()
    server.wait_ready()
    queue = HintQueue(make_celery(settings.model_copy(update={"broker_url": SecretStr(server.url)})))
    queued_job(sessions)
    assert dispatch(sessions, queue, settings) == 1
    server.child.kill()
    queued_job(sessions)
    assert dispatch(sessions, queue, settings) == 0
    server.start()
    server.wait_ready()
    assert dispatch(sessions, queue, settings) == 1
    queue.close()
    server.stop()


def test_no_more_hints_wait_than_are_of_use(sessions, settings, hints, broker):
    job_ids = [queued_job(sessions) for _ in range(MAX_WAITING + 3)]
    assert dispatch(sessions, hints, settings) == MAX_WAITING
    assert dispatch(sessions, hints, settings) == 0
    assert read_job(sessions, job_ids[-1]).hinted_at is None
    broker.lpop(TRAIN_QUEUE)
    assert dispatch(sessions, hints, settings) == 1
    assert broker.llen(TRAIN_QUEUE) == MAX_WAITING


def needing(sessions, gpus: int):
    return queued_job(sessions, spec=make_spec(resources=ResourcesSpec(gpus=gpus)))


def test_jobs_that_wait_for_a_large_worker_take_no_room_of_small_ones(sessions, settings, hints, broker):
    for _ in range(MAX_WAITING + 3):
        needing(sessions, 4)
    small = needing(sessions, 1)
    assert dispatch(sessions, hints, settings) == MAX_WAITING + 1
    assert (broker.llen(train_queue(4)), broker.llen(TRAIN_QUEUE)) == (MAX_WAITING, 1)
    assert read_job(sessions, small).hinted_at is not None


def test_a_probe_needs_one_gpu_whatever_its_job_will(sessions, settings, hints, broker):
    job_id = needing(sessions, 4)
    with sessions.begin() as session:
        session.get_one(Job, job_id).kind = JobKind.SIGNAL_PROBE
    assert dispatch(sessions, hints, settings) == 1
    assert broker.llen(TRAIN_QUEUE) == 1


@pytest.mark.parametrize(("gpus", "heard"), [(1, [TRAIN_QUEUE]), (2, [TRAIN_QUEUE, "podium.train.2"])])
def test_a_worker_hears_of_jobs_that_it_has_the_gpus_for(settings, gpus, heard):
    app = make_celery(settings.model_copy(update={"gpus": gpus}))
    assert sorted(app.amqp.queues.consume_from) == heard


def test_while_the_broker_is_away_no_job_is_marked_as_told(sessions, settings, hints):
    job_id = queued_job(sessions)
    nobody = SecretStr(f"redis://127.0.0.1:{free_port()}/0")
    deaf = HintQueue(make_celery(settings.model_copy(update={"broker_url": nobody})))
    assert dispatch(sessions, deaf, settings) == 0
    deaf.close()
    assert read_job(sessions, job_id).hinted_at is None
    assert dispatch(sessions, hints, settings) == 1


@pytest.mark.parametrize(
    ("wish", "status"), [(jobs.request_cancel, JobStatus.CANCELLED), (jobs.request_pause, JobStatus.PAUSED)]
)
def test_a_wish_for_a_job_whose_worker_was_lost_needs_no_other_worker(sessions, settings, wish, status):
    lost, held = claimed(sessions), claimed(sessions)
    for lease in (lost, held):
        with sessions.begin() as session:
            wish(session, jobs.get(session, lease.job_id))
    expire(sessions, lost.job_id)
    dispatch(sessions, DyingBroker(), settings)
    assert read_job(sessions, lost.job_id).status is status
    assert read_job(sessions, held.job_id).status is JobStatus.RUNNING


def test_a_broker_that_goes_away_between_two_hints_costs_one_interval(sessions, settings):
    job_ids = [queued_job(sessions) for _ in range(3)]

    assert dispatch(sessions, DyingBroker(), settings) == 1
    assert due(sessions) == []
    assert due(sessions, hint_repeat_s=0.001) == job_ids
