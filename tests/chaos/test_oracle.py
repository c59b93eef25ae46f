"""The oracle of the chaos bench speaks for each law that is broken, and is silent for a run that kept them all."""

import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.orm import sessionmaker

from bench._chaos import audit, objects
from bench._chaos.clients import METADATA_KEY, ROWS, Heard
from bench._chaos.compute import Span, overlaps
from bench._chaos.oracle import Evidence, Violation, Wrong, judge
from bench._chaos.plan import Submit
from bench._chaos.trainer import Computed, read_compute_log
from core import keys
from core.db import migrate, progress
from core.db.models import Job
from core.db.session import Sessions
from core.ids import JobId, new_file_id
from core.settings import Settings
from core.spec import CheckpointSpec, Hyperparameters
from core.status import JobStatus
from core.storage.connect import open_store
from core.storage.store import ObjectStore
from tests.factories import claim, expire, make_data_ref, make_spec, queued_job, read_events, read_job
from tests.servers.postgres import create_database
from worker.supervisor import supervise

STEPS = 5
SEED = 7


@dataclass(frozen=True)
class World:
    """One job that lost its first worker and succeeded at its second attempt, and all that is known of it."""

    database_url: str
    store: ObjectStore
    job_id: JobId
    evidence: Evidence


@pytest.fixture(scope="module")
def world(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("chaos")
    url = create_database(postgres_url)
    migrate.upgrade(url)
    settings = Settings(
        _env_file=None,
        database_url=url,
        store_url=f"file://{folder / 'store'}",
        runs_dir=folder / "runs",
        trainer_python=write_trainer(folder),
        supervisor_poll_s=0.1,
    )
    engine, store = create_engine(url), open_store(settings)
    sessions = sessionmaker(engine, expire_on_commit=False)
    with sessions.begin() as session:
        audit.install(session)
    job_id = queue(sessions, store)
    claim(sessions, job_id)
    expire(sessions, job_id)
    supervise(job_id, sessions, store, settings)
    assert read_job(sessions, job_id).status is JobStatus.SUCCEEDED, read_events(sessions, job_id)[-1].message
    engine.dispose()
    return World(url, store, job_id, evidence_of(job_id, folder))


def write_trainer(folder: Path) -> Path:
    trainer = folder / "trainer"
    trainer.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bench._chaos.trainer "{folder}/compute.jsonl" "$@"\n')
    trainer.chmod(trainer.stat().st_mode | stat.S_IXUSR)
    return trainer


def queue(sessions: Sessions, store: ObjectStore) -> JobId:
    data = make_data_ref(ROWS, new_file_id())
    store.put_bytes(keys.data_file(data.file_id), ROWS)
    spec = make_spec(
        training=data,
        held_out=data,
        seed=SEED,
        hyperparameters=Hyperparameters(max_steps=STEPS, num_generations=2, prompts_per_step=2, learning_rate=1e-3),
        checkpoints=CheckpointSpec(every_steps=2),
    )
    return queued_job(sessions, spec=spec, metadata={METADATA_KEY: "0"})


def evidence_of(job_id: JobId, folder: Path) -> Evidence:
    heard = Heard()
    heard.ids[0].add(job_id)
    return Evidence(
        submitted=(Submit(number=0, steps=STEPS, save_every=2, keep=3, twice=False),),
        heard=heard,
        computed=read_compute_log(folder / "compute.jsonl"),
        frozen=(),
        damaged=frozenset(),
        left_behind=(),
        longest_overlap_s=1.0,
    )


@pytest.fixture
def sessions(world: World) -> Iterator[Sessions]:
    """Whatever a test does to the ledger is taken back."""
    engine = create_engine(world.database_url)
    with engine.connect() as connection:
        transaction = connection.begin()
        yield sessionmaker(connection, join_transaction_mode="create_savepoint", expire_on_commit=False)
        transaction.rollback()
    engine.dispose()


def execute(sessions: Sessions, statement: str) -> None:
    with sessions.begin() as session:
        session.execute(text(statement))


def wrongs(found: list[Violation]) -> set[Wrong]:
    return {violation.wrong for violation in found}


def test_a_run_that_kept_every_law_is_clean(world: World, sessions):
    assert judge(sessions, world.store, world.evidence) == []
    with sessions() as session:
        job = session.get_one(Job, world.job_id)
        assert (job.attempt, len(progress.steps(session, job.id))) == (2, STEPS)
        assert objects.checkpoints(session, job)[-1].step == 4


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        ("UPDATE jobs SET status = 'failed'", Wrong.LOST),
        ("UPDATE jobs SET status = 'running'", Wrong.LOST),
        ("UPDATE jobs SET status = 'cancelled'", Wrong.LOST),
        ("DELETE FROM step_metrics WHERE step = 3", Wrong.LOST),
        ("DELETE FROM step_metrics WHERE step = 5", Wrong.LOST),
        ("UPDATE jobs SET results_file = NULL", Wrong.LOST),
        ("DELETE FROM artifacts WHERE name = 'results.json'", Wrong.LOST),
        ("DELETE FROM artifacts WHERE name = 'adapter/adapter_config.json'", Wrong.LOST),
        ("DELETE FROM job_events WHERE seq = 4", Wrong.GAP),
        ("UPDATE jobs SET next_event_seq = next_event_seq + 1", Wrong.GAP),
        ("UPDATE step_metrics SET metrics = metrics WHERE step = 2", Wrong.DOUBLED),
        ("UPDATE job_attempts SET ended = 'succeeded' WHERE attempt = 1", Wrong.DOUBLED),
        ("UPDATE job_attempts SET journal_offset = 9 WHERE attempt = 1", Wrong.STALE),
        ("UPDATE step_metrics SET attempt = 1 WHERE step = 2", Wrong.STALE),
        ("UPDATE job_events SET attempt = 1 WHERE code = 'succeeded'", Wrong.STALE),
        ("UPDATE step_metrics SET metrics = metrics || '{\"weights\": 1}' WHERE step = 2", Wrong.BAD_LOAD),
        ("UPDATE checkpoints SET corrupt_at = now() WHERE step = 4", Wrong.BAD_LOAD),
        ("UPDATE checkpoints SET step = 3 WHERE step = 4", Wrong.BAD_LOAD),
        ("UPDATE checkpoints SET manifest_sha256 = 'x' WHERE step = 4", Wrong.BAD_LOAD),
    ],
)
def test_a_row_that_breaks_a_law_is_found(world: World, sessions, statement: str, wrong: Wrong):
    execute(sessions, statement)
    assert wrong in wrongs(judge(sessions, world.store, world.evidence))


def test_a_cancel_that_was_asked_for_explains_a_cancelled_job(world: World, sessions):
    execute(sessions, "UPDATE jobs SET status = 'cancelled'")
    execute(sessions, "UPDATE job_attempts SET ended = 'user_cancelled' WHERE attempt = 2")
    heard = replace(world.evidence.heard, cancel_asked={world.job_id})
    found = judge(sessions, world.store, replace(world.evidence, heard=heard))
    assert Wrong.LOST not in wrongs(found)


@pytest.mark.parametrize("name", ["state.json", "optimizer.bin", "MANIFEST.json"])
def test_a_checkpoint_that_changed_in_the_store_is_found_unless_we_harmed_it(world: World, sessions, name: str):
    with sessions() as session:
        checkpoint = objects.checkpoints(session, session.get_one(Job, world.job_id))[-1]
    key = checkpoint.prefix + name
    whole = world.store.get_bytes(key)
    world.store.put_bytes(key, whole[:-1] + b"?")
    try:
        assert wrongs(judge(sessions, world.store, world.evidence)) == {Wrong.BAD_LOAD}
        assert judge(sessions, world.store, replace(world.evidence, damaged=frozenset({checkpoint.id}))) == []
    finally:
        world.store.put_bytes(key, whole)


def test_a_result_without_its_object_is_found(world: World, sessions):
    with sessions() as session:
        query = select(Job.id)
        artifact = progress.artifacts(session, session.scalars(query).one())[0]
    whole = world.store.get_bytes(artifact.key)
    world.store.delete(artifact.key)
    try:
        assert wrongs(judge(sessions, world.store, world.evidence)) == {Wrong.LOST}
    finally:
        world.store.put_bytes(artifact.key, whole)


def test_what_clients_and_processes_say_is_held_against_the_ledger(world: World, sessions):
    def found(**changes: object) -> set[Wrong]:
        return wrongs(judge(sessions, world.store, replace(world.evidence, **changes)))

    unanswered = Submit(number=1, steps=5, save_every=2, keep=3, twice=False)
    assert found(submitted=(*world.evidence.submitted, unanswered)) == {Wrong.LOST}
    two_answers = Heard()
    two_answers.ids[0] |= {world.job_id, "ftjob-other"}
    assert found(heard=two_answers) == {Wrong.DOUBLED}
    assert found(heard=replace(world.evidence.heard, refused=["422"])) == {Wrong.LOST}
    assert found(left_behind=["4711 trainer"]) == {Wrong.ORPHAN}
    bad = world.evidence.computed[-1].model_copy(update={"kind": "bad_load"})
    assert found(computed=(*world.evidence.computed, bad)) == {Wrong.BAD_LOAD}
    assert found(computed=()) == {Wrong.STALE}, "nobody computed what the ledger shows"


def computed(attempt: int, *times: float) -> list[Computed]:
    return [Computed(at=at, kind="slice", job_id="j", attempt=attempt, step=0, pid=1, supervisor_pid=1) for at in times]


def test_two_attempts_that_compute_at_once_are_seen_and_a_freeze_explains_it():
    log = [*computed(1, 0.0, 1.0, 2.0, 3.0), *computed(2, 1.5, 2.5)]
    (overlap,) = overlaps(log, [])
    assert (overlap.earlier, overlap.later, overlap.seconds) == (1, 2, 1.0)
    assert overlaps(log, [Span("j", 1.8, 3.5)]) == []
    assert overlaps([*computed(1, 0.0, 1.0), *computed(2, 1.5, 2.5)], []) == []


def test_the_oracle_counts_two_trainers_as_a_double_run(world: World, sessions):
    begin = world.evidence.computed[0].at
    twin = [
        line.model_copy(update={"attempt": 1, "at": begin + number})
        for number, line in enumerate(world.evidence.computed[:4])
    ]
    found = judge(sessions, world.store, replace(world.evidence, computed=(*world.evidence.computed, *twin)))
    assert wrongs(found) == {Wrong.DOUBLED}
