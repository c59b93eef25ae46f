"""One attempt after another at one job: what becomes of every way in which a trainer can end."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from sqlalchemy import select

from core import keys
from core.db.models import File
from core.results import JobResults, json_schema
from core.settings import CHECKOUT
from core.spec import ModelRef, ModelSource
from core.status import JobStatus, StatusReason
from tests.factories import claim, event_codes, make_reward, make_spec, queued_job, read_events, read_job
from tests.worker.workshop import HAPPY, Workshop

CRASH_AFTER_A_CHECKPOINT = [["baseline"], ["stage", "training"], ["steps", 3], ["checkpoint"], ["steps", 2], ["die"]]
RESUME_AND_FINISH = [["baseline"], ["stage", "training"], ["steps", 3], ["checkpoint"], ["finish"]]


def test_a_scripted_trainer_starts_without_torch():
    """Hundreds are started in the suite, and torch takes seconds to load."""
    code = "import sys, tests.worker.scripted_trainer; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=True)


def test_a_happy_run_ends_succeeded_and_its_log_tells_the_whole_story_in_order(workshop: Workshop):
    workshop.script(HAPPY)
    job_id = workshop.queue()
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.step, job.durable_step) == (JobStatus.SUCCEEDED, 4, 4)
    assert (job.attempt, job.failures, job.preemptions, job.trained_tokens) == (1, 0, 0, 1000)
    told = ["queued", "claimed", "stage_baseline", "evaluated", "stage_training", "evaluated", "succeeded"]
    codes = event_codes(workshop.sessions, job_id)
    assert [code for code in codes if code != "checkpoint"] == told
    assert codes.count("checkpoint") == 1, "its place depends on the upload"
    assert codes[-1] == "succeeded"
    assert read_events(workshop.sessions, job_id)[-1].message.startswith("Improved: 8 of 20 tasks fixed, 0 broken")


def test_results_of_a_happy_run_can_be_downloaded_and_name_only_what_is_there(workshop: Workshop):
    workshop.script(HAPPY)
    job_id = workshop.queue()
    workshop.supervise(job_id)
    artifacts = workshop.artifacts(job_id)
    data = {name: workshop.store.get_bytes(artifact.key) for name, artifact in artifacts.items()}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in data.items()} == {
        name: artifact.sha256 for name, artifact in artifacts.items()
    }
    results = JobResults.model_validate_json(data["results.json"])
    Draft202012Validator(json.loads(json_schema())).validate(json.loads(data["results.json"]))
    assert {fact.name for fact in results.artifacts} == set(artifacts) - {"results.json"}
    assert (results.verdict.outcome, results.verdict.fixed, results.verdict.broken) == ("improved", 8, 0)
    assert [(a.attempt, a.ended) for a in results.attempts] == [(1, "succeeded")]
    assert results.model.adapter_sha256 == hashlib.sha256(b"weights of step 4").hexdigest()


def test_the_results_are_a_file_of_the_tenant(workshop: Workshop):
    workshop.script(HAPPY)
    job_id = workshop.queue()
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    with workshop.sessions() as session:
        file = session.scalar(select(File).where(File.id == job.results_file))
    assert file is not None
    assert (file.tenant_id, file.purpose, file.job_id) == (job.tenant_id, "fine-tune-results", job_id)
    assert file.key == workshop.artifacts(job_id)["results.json"].key


def test_metrics_and_rollouts_arrive_whatever_the_model_said(workshop: Workshop):
    """The scripted completion holds a NUL, and its loss is NaN."""
    workshop.script(HAPPY)
    job_id = workshop.queue()
    workshop.supervise(job_id)
    assert [(s.step, s.metrics) for s in workshop.steps(job_id)] == [
        (step, {"reward": step / 10, "attempt": 1.0, "kl": None}) for step in range(1, 5)
    ]


def test_a_finished_run_leaves_no_heavy_files_behind(workshop: Workshop):
    workshop.script(HAPPY)
    job_id = workshop.queue()
    workshop.supervise(job_id)
    (run,) = (workshop.settings.runs_dir / job_id).iterdir()
    assert sorted(path.name for path in run.iterdir()) == [".held", "outcome.json", "spec.json", "trainer.log"]


def test_a_second_supervisor_for_a_held_job_does_nothing(workshop: Workshop):
    workshop.script(HAPPY)
    job_id = workshop.queue()
    assert claim(workshop.sessions, job_id) is not None
    workshop.supervise(job_id)
    assert event_codes(workshop.sessions, job_id) == ["queued", "claimed"]
    assert not workshop.settings.runs_dir.exists()


def test_a_crash_counts_as_a_failure_and_the_next_attempt_goes_on_from_the_checkpoint(workshop: Workshop):
    workshop.script(CRASH_AFTER_A_CHECKPOINT, RESUME_AND_FINISH)
    job_id = workshop.queue()
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.status_reason) == (JobStatus.QUEUED, StatusReason.TRAINER_CRASHED)
    assert (job.failures, job.preemptions, job.lease_owner) == (1, 0, None)
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.attempt, job.failures, job.step) == (JobStatus.SUCCEEDED, 2, 0, 6), (
        "progress refills the budget"
    )
    state = {"step": 3, "attempt": 1, "files": ["only-in-step-3.bin", "state.json"]}
    assert workshop.event(job_id, "state") == state
    assert workshop.event(job_id, "resumed") == {"step": 3, "redone_steps": 2}
    assert [(s.step, s.attempt) for s in workshop.steps(job_id)] == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)]
    event_codes(workshop.sessions, job_id)


def test_the_baseline_of_the_first_attempt_is_reused(workshop: Workshop):
    workshop.script(CRASH_AFTER_A_CHECKPOINT, RESUME_AND_FINISH)
    job_id = workshop.queue()
    workshop.supervise(job_id)
    workshop.supervise(job_id)
    assert "baseline_reused" in event_codes(workshop.sessions, job_id)
    data = json.loads(workshop.store.get_bytes(workshop.artifacts(job_id)["results.json"].key))
    assert data["baseline"]["greedy"]["passed"] == 8
    assert data["cost"]["redone_steps"] == 2
    assert [attempt["ended"] for attempt in data["attempts"]] == ["trainer_crashed", "succeeded"]


def test_the_failure_that_spends_the_budget_ends_the_job_with_the_log_in_the_error(workshop: Workshop):
    workshop.script([["say", "first words"], ["say", "RuntimeError: the last words"], ["exit", 3]])
    job_id = workshop.queue()
    for failures in (1, 2):
        workshop.supervise(job_id)
        job = read_job(workshop.sessions, job_id)
        assert (job.status, job.failures) == (JobStatus.QUEUED, failures)
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.status_reason, job.failures) == (JobStatus.FAILED, StatusReason.TRAINER_CRASHED, 3)
    assert job.error is not None
    assert job.error["code"] == "trainer_crashed"
    assert "exit code 3" in job.error["message"]
    assert "RuntimeError: the last words" in job.error["message"]
    assert job.error["fix"]
    workshop.supervise(job_id)
    assert read_job(workshop.sessions, job_id).attempt == 3, "a failed job is not tried again"


def test_a_failure_that_another_attempt_cannot_mend_ends_the_job_at_once(workshop: Workshop):
    failure = {"reason": "grader_failed", "code": "reward_not_loadable", "message": "No module named 'x'.", "fix": "Y."}
    workshop.script([["stage", "baseline"], ["fail", failure]])
    job_id = workshop.queue()
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.status_reason, job.failures) == (JobStatus.FAILED, StatusReason.GRADER_FAILED, 1)
    expected = {"code": "reward_not_loadable", "message": "No module named 'x'.", "param": None, "fix": "Y."}
    assert job.error == expected


def test_a_failure_that_may_pass_is_tried_again(workshop: Workshop):
    failure = {"reason": "out_of_memory", "code": "cuda_oom", "message": "Out of memory.", "retryable": True}
    workshop.script([["fail", failure]], HAPPY)
    job_id = workshop.queue()
    workshop.supervise(job_id)
    assert read_job(workshop.sessions, job_id).status_reason is StatusReason.OUT_OF_MEMORY
    workshop.supervise(job_id)
    assert workshop.status(job_id) is JobStatus.SUCCEEDED


def test_a_trainer_that_the_machine_told_to_stop_was_preempted_not_broken(workshop: Workshop):
    """At a shutdown every process gets SIGTERM; the trainer may be gone before its supervisor hears of it."""
    workshop.script([["steps", 2], ["checkpoint"], ["stop_by_itself"]], HAPPY)
    job_id = workshop.queue()
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.status_reason) == (JobStatus.QUEUED, StatusReason.PREEMPTED)
    assert (job.failures, job.preemptions, job.durable_step) == (0, 1, 2)


def test_too_many_preemptions_end_the_job(workshop: Workshop):
    workshop.set(max_preemptions=2)
    workshop.script([["stop_by_itself"]])
    job_id = workshop.queue()
    workshop.supervise(job_id)
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.preemptions) == (JobStatus.FAILED, 2)
    assert job.error is not None
    assert job.error["code"] == "preempted_too_often"


def test_data_that_the_store_does_not_have_pauses_the_job(workshop: Workshop):
    """Nobody can delete it over the API while the job is active: it is the store that lacks something."""
    workshop.script(HAPPY)
    spec = workshop.spec()
    job_id = queued_job(workshop.sessions, spec=spec)
    workshop.store.delete(keys.data_file(spec.training.file_id))
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.status_reason) == (JobStatus.PAUSED, StatusReason.DATA_UNUSABLE)
    assert "There is no object" in read_events(workshop.sessions, job_id)[-1].message


def test_changed_data_is_never_trained_on(workshop: Workshop):
    workshop.script(HAPPY)
    spec = workshop.spec()
    workshop.store.put_bytes(keys.data_file(spec.training.file_id), b"something else")
    job_id = queued_job(workshop.sessions, spec=spec)
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.step) == (JobStatus.PAUSED, 0)
    assert "has SHA-256" in read_events(workshop.sessions, job_id)[-1].message


def test_an_outage_of_the_store_costs_no_failure_of_the_job(workshop: Workshop):
    outage = {"reason": "store_failed", "code": "store_unavailable", "message": "It is away.", "retryable": True}
    workshop.script([["fail", outage]])
    job_id = workshop.queue()
    for attempt in (1, 2, 3, 4):
        workshop.supervise(job_id)
        job = read_job(workshop.sessions, job_id)
        assert (job.status, job.attempt, job.failures) == (JobStatus.QUEUED, attempt, 0)


def test_a_reward_that_is_not_the_one_of_the_spec_is_never_run(workshop: Workshop):
    workshop.script(HAPPY)
    spec = make_spec(training=workshop.spec().training, held_out=None, rewards=(make_reward(source="another one"),))
    job_id = queued_job(workshop.sessions, spec=spec)
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.status_reason) == (JobStatus.FAILED, StatusReason.GRADER_FAILED)


def test_a_model_that_no_worker_has_is_named_and_waited_for(workshop: Workshop):
    workshop.script(HAPPY)
    job_id = workshop.queue(model=ModelRef(name="acme/secret", source=ModelSource.LOCAL, revision=None))
    workshop.set(max_failures=2)
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.status_reason, job.failures) == (JobStatus.QUEUED, StatusReason.MODEL_UNUSABLE, 1)
    workshop.supervise(job_id)
    assert workshop.status(job_id) is JobStatus.PAUSED, "somebody can put it there"
    assert "acme/secret" in read_events(workshop.sessions, job_id)[-1].message


def test_a_model_whose_folder_is_not_on_this_worker_is_tried_elsewhere(workshop: Workshop, tmp_path: Path):
    workshop.script(HAPPY)
    workshop.set(models={"acme/secret": tmp_path / "not-there"})
    job_id = workshop.queue(model=ModelRef(name="acme/secret", source=ModelSource.LOCAL, revision=None))
    workshop.supervise(job_id)
    assert workshop.status(job_id) is JobStatus.QUEUED
    (tmp_path / "not-there").mkdir()
    workshop.supervise(job_id)
    assert workshop.status(job_id) is JobStatus.SUCCEEDED


def test_a_worker_without_the_trainers_interpreter_gives_the_job_back(workshop: Workshop):
    workshop.script(HAPPY)
    workshop.set(trainer_python=workshop.folder / "not-there")
    job_id = workshop.queue()
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.status_reason, job.failures) == (JobStatus.QUEUED, StatusReason.WORKER_UNFIT, 1)
    assert "not-there" in read_events(workshop.sessions, job_id)[-1].message


def test_a_trainer_of_another_version_is_named_as_such(workshop: Workshop):
    workshop.script([["write_line", '{"kind": "from_the_future", "at": 1}\n'], ["hang"]])
    job_id = workshop.queue()
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.status_reason) == (JobStatus.QUEUED, StatusReason.WORKER_UNFIT)
    assert "journal.jsonl of the run cannot be read" in read_events(workshop.sessions, job_id)[-1].message


def test_a_run_without_a_final_evaluation_has_no_verdict_and_does_not_succeed(workshop: Workshop):
    workshop.script([["baseline"], ["steps", 1], ["finish_without_evaluation"]])
    job_id = workshop.queue()
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.failures) == (JobStatus.QUEUED, 1)
    assert "without the evaluations final" in read_events(workshop.sessions, job_id)[-1].message
    assert workshop.artifacts(job_id) == {}


def test_a_torn_last_line_of_a_dead_trainer_is_left_out(workshop: Workshop):
    workshop.script([["steps", 2], ["write_line", '{"kind": "step", "st'], ["die"]])
    job_id = workshop.queue()
    workshop.supervise(job_id)
    assert [s.step for s in workshop.steps(job_id)] == [1, 2]
    assert read_job(workshop.sessions, job_id).status_reason is StatusReason.TRAINER_CRASHED


def test_the_trainers_environment_holds_no_secret_of_ours(workshop: Workshop, monkeypatch: pytest.MonkeyPatch):
    secrets = {
        "PODIUM_DATABASE_URL": "postgresql://podium:s3cret@db/podium",
        "PODIUM_BROKER_URL": "redis://:s3cret@broker/0",
        "AWS_ACCESS_KEY_ID": "s3cret",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "PGPASSWORD": "s3cret",
        "WANDB_API_KEY": "s3cret",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_HOME", "/models")
    workshop.script([["show_environment"], *HAPPY])
    job_id = workshop.queue()
    workshop.supervise(job_id)
    variables = workshop.event(job_id, "environment")["variables"]
    ours = [name for name in variables if name.startswith(("PODIUM_", "AWS_", "PG", "WANDB_"))]
    assert sorted(ours) == [
        "PODIUM_ALLOW_PRIVATE_REWARD_URLS",
        "PODIUM_REWARD_MEMORY_BYTES",
        "PODIUM_RUN_REWARD_CODE_WITHOUT_SANDBOX",
    ]
    assert "s3cret" not in "".join(variables.values())
    assert "s3cret" not in json.dumps(variables)
    assert variables["HF_HOME"] == "/models"
