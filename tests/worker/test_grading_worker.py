"""The grading worker's own life: what it loads, what it survives, and what becomes of a task when it does not."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import redis
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import SIG_SOFT_TIMEOUT, soft_timeout_sighandler
from sqlalchemy import event, update
from sqlalchemy.orm import Session

from core import keys
from core.builtin_rewards.catalogue import parse_builtin
from core.db import files, grading_tasks, reward_probes, rewards
from core.db.models import File, GradingTask, now
from core.db.reward_probes import Called
from core.grading_tasks import GraderRan, GradingTaskKind, GradingTaskStatus, ProbeSource, RunGrader
from core.ids import FileId, GradingTaskId, new_file_id
from core.queue import GRADING_QUEUE, GRADING_TASK, hint_message
from core.reward_report import FlagCode, ProbeReport
from core.reward_source import RewardForm
from core.rows import FileFormat
from core.settings import CHECKOUT, Settings
from core.spec import BuiltinReward
from tests.factories import REWARD_SOURCE, TENANT, make_reward
from tests.polling import wait_until
from tests.servers.grading_worker import running_grading_worker
from tests.worker.workshop import Workshop, is_running
from worker import leftovers
from worker.dispatcher import HintQueue, dispatch_grading
from worker.grading_tasks import data
from worker.grading_tasks.answer import HARD_LIMIT_S, LAST_WORDS_S, LEASE_S, SOFT_LIMIT_S, answer
from worker.grading_tasks.context import Workplace
from worker.grading_tasks.tasks import grade
from worker.main import make_celery
from worker.temporary import PREFIX

HANGS = "import time\ndef reward(completion, answer):\n    while True:\n        time.sleep(0.01)\n"
ROWS = b"".join(b'{"prompt": "%d?", "answer": "%d"}\n' % (n, n) for n in range(10))
NEVER_LOADED = ("torch", "transformers", "trl", "peft", "datasets", "accelerate")


@pytest.fixture
def grading(workshop: Workshop, valkey_url: str) -> Settings:
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
    return Settings(_env_file=None, **{**workshop.settings.model_dump(), "broker_url": valkey_url})


@pytest.fixture
def worker(grading: Settings, tmp_path: Path) -> Iterator[psutil.Popen]:
    with running_grading_worker(grading, tmp_path / "grading.log", concurrency=1) as process:
        yield process


@pytest.fixture
def send(valkey_url: str) -> Iterator[Callable[[GradingTaskId], None]]:
    """The hint that the API sends."""
    with redis.Redis.from_url(valkey_url) as client:
        yield lambda task_id: client.lpush(GRADING_QUEUE, hint_message(GRADING_QUEUE, GRADING_TASK, task_id))


def trial(workshop: Workshop, source: str = REWARD_SOURCE) -> GradingTaskId:
    asked = RunGrader(terms=(make_reward(source=source),), sources={"exact": source}, item={"answer": "4"}, sample="4")
    with workshop.sessions.begin() as session:
        request = asked.model_dump(mode="json")
        return grading_tasks.add(session, tenant_id=TENANT, kind=GradingTaskKind.RUN_GRADER, request=request).id


def read(workshop: Workshop, task_id: GradingTaskId) -> GradingTask:
    with workshop.sessions() as session:
        task = grading_tasks.get(session, task_id)
    assert task is not None
    return task


def wait_for(workshop: Workshop, task_id: GradingTaskId, status: GradingTaskStatus) -> GradingTask:
    wait_until(lambda: read(workshop, task_id).status is status, what=f"{task_id} is {status}")
    return read(workshop, task_id)


def long_ago(workshop: Workshop, task_id: GradingTaskId) -> None:
    """Let the hint, and the lease if there is one, be of a minute ago."""
    then = now() - timedelta(seconds=60)
    with workshop.sessions.begin() as session:
        session.execute(update(GradingTask).where(GradingTask.id == task_id).values(hinted_at=then))
        held = (GradingTask.id == task_id, GradingTask.lease_expires_at.is_not(None))
        session.execute(update(GradingTask).where(*held).values(lease_expires_at=then))


def test_it_loads_no_tensor_library():
    program = f"import sys, worker.grading_tasks.tasks; print([name for name in {NEVER_LOADED} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_hint_as_the_api_sends_it_is_answered(workshop, worker, send):
    task_id = trial(workshop)
    send(task_id)
    send(task_id)
    task = wait_for(workshop, task_id, GradingTaskStatus.DONE)
    assert (task.answer["reward"], task.attempt) == (1.0, 1)


def test_a_lost_hint_is_sent_again_by_the_dispatcher(workshop, grading, worker):
    task_id = trial(workshop)
    hints = HintQueue(make_celery(grading), GRADING_QUEUE, GRADING_TASK)
    assert dispatch_grading(workshop.sessions, hints) == 0
    long_ago(workshop, task_id)
    assert dispatch_grading(workshop.sessions, hints) == 1
    hints.close()
    wait_for(workshop, task_id, GradingTaskStatus.DONE)


def test_killed_in_the_middle_it_leaves_no_sandbox_and_a_task_that_another_can_take(workshop, worker, send):
    task_id = trial(workshop, HANGS)
    send(task_id)
    wait_for(workshop, task_id, GradingTaskStatus.RUNNING)
    wait_until(lambda: any("bwrap" in child.name() for child in worker.children(recursive=True)), what="a sandbox")
    family = worker.children(recursive=True)
    worker.kill()
    wait_until(lambda: not any(map(is_running, family)), what="all that it had started has ended")
    assert read(workshop, task_id).status is GradingTaskStatus.RUNNING
    long_ago(workshop, task_id)
    answer(task_id, Workplace(workshop.sessions, workshop.store))
    task = read(workshop, task_id)
    assert (task.status, task.attempt) == (GradingTaskStatus.DONE, 2)
    assert task.answer["grades"]["exact"]["timed_out"] is True


def test_a_pool_child_that_is_killed_is_replaced_and_goes_on_with_the_next_task(workshop, worker, send):
    lost, next_one = trial(workshop, HANGS), trial(workshop)
    send(lost)
    wait_for(workshop, lost, GradingTaskStatus.RUNNING)
    (child,) = worker.children()
    child.kill()
    send(next_one)
    assert wait_for(workshop, next_one, GradingTaskStatus.DONE).answer["reward"] == 1.0
    assert read(workshop, lost).status is GradingTaskStatus.RUNNING


def test_sigterm_ends_it_when_its_task_is_done(workshop, worker, send):
    task_id = trial(workshop, HANGS)
    send(task_id)
    wait_for(workshop, task_id, GradingTaskStatus.RUNNING)
    worker.terminate()
    assert worker.wait(60) == 0
    assert read(workshop, task_id).status is GradingTaskStatus.DONE


def test_a_kind_that_it_does_not_know_fails_with_what_to_do(workshop, monkeypatch):
    monkeypatch.setattr("worker.grading_tasks.answer.HANDLERS", {})
    task_id = trial(workshop)
    answer(task_id, Workplace(workshop.sessions, workshop.store))
    task = read(workshop, task_id)
    assert (task.status, task.error["code"]) == (GradingTaskStatus.FAILED, "unknown_grading_task")


def test_a_task_that_takes_too_long_fails_with_what_to_do(workshop, monkeypatch):
    def out_of_time(request, context):
        raise SoftTimeLimitExceeded  # as Celery does it, wherever the task is

    monkeypatch.setattr("worker.grading_tasks.answer.HANDLERS", {GradingTaskKind.RUN_GRADER: out_of_time})
    task_id = trial(workshop)
    answer(task_id, Workplace(workshop.sessions, workshop.store))
    assert read(workshop, task_id).error["code"] == "grading_timed_out"


def test_it_gives_up_before_it_is_killed_and_is_killed_before_another_may_begin():
    assert (grade.soft_time_limit, grade.time_limit) == (SOFT_LIMIT_S, HARD_LIMIT_S)
    assert SOFT_LIMIT_S < LAST_WORDS_S < HARD_LIMIT_S < LEASE_S


def test_a_task_that_will_be_killed_says_why_and_is_not_begun_again(workshop, monkeypatch):
    def hangs(request, context):
        wait_for(workshop, task_id, GradingTaskStatus.FAILED)
        return {"too": "late"}

    monkeypatch.setattr("worker.grading_tasks.answer.HANDLERS", {GradingTaskKind.RUN_GRADER: hangs})
    monkeypatch.setattr("worker.grading_tasks.answer.LAST_WORDS_S", 0.1)
    task_id = trial(workshop)
    answer(task_id, Workplace(workshop.sessions, workshop.store))
    task = read(workshop, task_id)
    assert (task.error["code"], task.answer) == ("grading_timed_out", None)


@pytest.fixture
def soft_limit() -> Iterator[None]:
    """The handler of Celery's pool children."""
    before = signal.signal(SIG_SOFT_TIMEOUT, soft_timeout_sighandler)
    yield
    signal.signal(SIG_SOFT_TIMEOUT, before)


def test_a_limit_that_rings_while_the_answer_is_written_does_not_lose_it(workshop, soft_limit):
    task_id, rung = trial(workshop), []

    def ring(session: Session) -> None:
        rung.append(os.kill(os.getpid(), SIG_SOFT_TIMEOUT))

    event.listen(workshop.sessions, "before_commit", ring)
    answer(task_id, Workplace(workshop.sessions, workshop.store))
    event.remove(workshop.sessions, "before_commit", ring)
    assert len(rung) == 2, "at the claim, and at the answer"
    assert read(workshop, task_id).status.is_final


def test_what_a_killed_pool_child_has_left_is_swept(workshop, grading, send, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (of_another_day := tmp_path / f"{PREFIX}of-another-day").mkdir()
    with running_grading_worker(grading, tmp_path / "grading.log", concurrency=1) as worker:
        (left,) = wait_until(lambda: set(tmp_path.glob(f"{PREFIX}*")) - {of_another_day}, what="the child has a folder")
        assert not of_another_day.exists()
        lost = trial(workshop, HANGS)
        send(lost)
        wait_until(lambda: any(left.rglob("exact.py")), what="source in the child's folder")
        (child,) = worker.children()
        child.kill()
        wait_until(lambda: not left.exists(), what="the next child has removed it")
        wait_until(lambda: any(tmp_path.glob(f"{PREFIX}*")), what="the next child has a folder")
        (of_next,) = tmp_path.glob(f"{PREFIX}*")
        assert leftovers.is_held(of_next)


def test_a_fault_of_ours_fails_the_task_and_not_the_worker(workshop):
    task_id = trial(workshop)
    with workshop.sessions.begin() as session:
        session.execute(update(GradingTask).where(GradingTask.id == task_id).values(request={"what": "?"}))
    answer(task_id, Workplace(workshop.sessions, workshop.store))
    assert read(workshop, task_id).error["code"] == "grading_broke"


def test_all_terms_share_the_time_that_somebody_waits(workshop):
    slow = parse_builtin({"builtin": "code_tests", "column": "tests"})
    terms = (BuiltinReward(name="tests", weight=1.0, parameters=slow), make_reward(source=REWARD_SOURCE))
    item = {"answer": "4", "tests": ["assert True"] * 100}
    asked = RunGrader(terms=terms, sources={"exact": REWARD_SOURCE}, item=item, sample="while True: pass", within_s=2.0)
    with workshop.sessions.begin() as session:
        request = asked.model_dump(mode="json")
        task_id = grading_tasks.add(session, tenant_id=TENANT, kind=GradingTaskKind.RUN_GRADER, request=request).id
    answer(task_id, Workplace(workshop.sessions, workshop.store))
    ran = GraderRan.model_validate(read(workshop, task_id).answer)
    assert ran.reward is None
    assert {(grade.outcome, grade.timed_out) for grade in ran.grades.values()} == {("infrastructure_error", True)}
    assert all(str(grade.message).startswith("not tried") for grade in ran.grades.values())


def test_a_task_leaves_no_source_behind(workshop, monkeypatch, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    answer(trial(workshop), Workplace(workshop.sessions, workshop.store))
    assert list(folder.iterdir()) == []


def stored_file(workshop: Workshop, content: bytes, file_format: FileFormat = FileFormat.JSONL) -> FileId:
    file_id = new_file_id()
    sha256 = workshop.store.put_bytes(keys.data_file(file_id), content)
    with workshop.sessions.begin() as session:
        files.add(
            session,
            File(
                id=file_id, tenant_id=TENANT, filename="rows", purpose="fine-tune", format=file_format.value,
                size_bytes=len(content), sha256=sha256, key=keys.data_file(file_id), rows=content.count(b"\n"),
                columns=["answer"],
            ),
        )  # fmt: skip
    return file_id


def probe(workshop: Workshop, file_id: FileId | None) -> GradingTask:
    entry = {
        "name": "reward", "form": "per_sample", "provided": ["completion"], "columns": ["answer"],
        "optional_columns": [], "takes_any": False, "is_async": False,
    }  # fmt: skip
    with workshop.sessions.begin() as session:
        reward = rewards.add(session, tenant_id=TENANT, name="exact")
        version = rewards.add_version(session, reward.id, source=REWARD_SOURCE, sha256="0" * 64, entry=entry)
        task_id = reward_probes.add(session, tenant_id=TENANT, called=Called(version.id), file_id=file_id).id
    answer(task_id, Workplace(workshop.sessions, workshop.store))
    return read(workshop, task_id)


def test_a_probe_reads_the_rows_of_its_data_set(workshop):
    report = ProbeReport.model_validate(probe(workshop, stored_file(workshop, ROWS)).answer)
    assert (report.loads, report.synthetic) == (True, False)
    assert report.gold is not None
    assert report.gold.column == "answer"


def test_source_that_came_inside_a_job_is_probed_in_the_same_way(workshop):
    source = "def grade(sample, item): return 1.0\n"
    asked = ProbeSource(
        source=source,
        source_sha256=hashlib.sha256(source.encode()).hexdigest(),
        entry_point="grade",
        form=RewardForm.OPENAI,
        file_id=stored_file(workshop, ROWS),
    )
    with workshop.sessions.begin() as session:
        task_id = reward_probes.of_source(session, TENANT, asked).id
    answer(task_id, Workplace(workshop.sessions, workshop.store))
    task = read(workshop, task_id)
    assert "source" not in task.request, "nobody needs it any more"
    report = ProbeReport.model_validate(task.answer)
    assert (report.loads, report.synthetic) == (True, False)
    assert FlagCode.ALWAYS_THE_SAME in {flag.code for flag in report.flags}


def test_of_a_large_data_set_only_the_beginning_is_fetched(workshop, monkeypatch, tmp_path):
    monkeypatch.setattr(data, "HEAD_BYTES", 100)
    file_id = stored_file(workshop, ROWS)
    with workshop.sessions() as session:
        file = files.get_owned(session, TENANT, file_id)
    rows = data.first_rows(workshop.store, file, tmp_path, count=32)
    assert (tmp_path / "rows").stat().st_size == 100
    assert [row.columns["answer"] for row in rows] == ["0", "1", "2"]


def test_a_probe_whose_data_set_is_gone_fails_with_what_to_do(workshop):
    file_id = stored_file(workshop, ROWS)
    with workshop.sessions.begin() as session:
        files.delete(session, file_id)
    task = probe(workshop, file_id)
    assert (task.status, task.error["code"]) == (GradingTaskStatus.FAILED, "probed_thing_gone")
    assert task.error["fix"]
