"""Rescores by a real grading worker: stored rollouts and held-out answers, under another version."""

from collections.abc import Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from core.db import leases, progress, rewards
from core.db.session import Sessions
from core.ids import RewardId, RewardVersionId
from core.rescoring import MOST_ROLLOUTS, Rescore
from core.results import Answer, Evaluation, TaskResult
from core.settings import Settings
from core.storage.connect import open_store
from tests.api.forms import upload
from tests.api.jobs.conftest import MODEL, rows, upload_reward
from tests.api.jobs.runs import Run
from tests.model_folders import write_model
from worker.grading_tasks import rescore
from worker.grading_tasks.context import Context, Workplace
from worker.records import on_record
from worker.run_directory import Rollout

pytestmark = pytest.mark.usefixtures("grading_worker")

STRICT = "def reward(completion, answer):\n    return float(completion == answer)\n"
LENIENT = """
def reward(completion, answer):
    if completion == "crash":
        raise ValueError("cannot read this")
    return None if completion == "skip" else float(answer in completion)
"""


@pytest.fixture
def settings(settings: Settings, tmp_path) -> Settings:
    return settings.model_copy(update={"models": {MODEL: write_model(tmp_path / "model")}, "allow_hub_models": False})


class Job:
    """A job with groups of two, whose first reward is `STRICT`."""

    def __init__(
        self,
        client: TestClient,
        sessions: Sessions,
        settings: Settings,
        *more: dict[str, Any],
        kept_rollouts: int = 128,
    ) -> None:
        self._client = client
        self.reward = upload_reward(client, STRICT)
        hyperparameters = {"num_generations": 2, "prompts_per_step": 2, "max_steps": 4}
        grpo = {
            "rewards": [{"reward": self.reward}, *more],
            "hyperparameters": hyperparameters,
            "evaluation": {"pass_threshold": 1.0},
            "record": {"rollouts_per_step": kept_rollouts},
        }
        body = {
            "model": MODEL,
            "training_file": upload(client, rows(20)).json()["id"],
            "validation_file": upload(client, rows(8, first=100)).json()["id"],
            "method": {"type": "grpo", "grpo": grpo},
        }
        response = client.post("/v1/fine_tuning/jobs", json=body)
        assert response.status_code == 201, response.text
        self.run = Run.claim(sessions, open_store(settings), response.json()["id"])

    def wrote(self, step: int, *completions: str, grades: Sequence[dict[str, float]] | None = None) -> None:
        """Rollouts of rows 1, 1, 2, 2: the answers are 0 and 2."""
        rollouts = []
        for index, completion in enumerate(completions):
            said = grades[index] if grades else {"exact": float(completion == str(index // 2 * 2))}
            rollouts.append(
                {
                    "index": index,
                    "row": index // 2 + 1,
                    "prompt": "the prompt",
                    "completion": completion,
                    "grades": {name: {"outcome": "scored", "value": value} for name, value in said.items()},
                    "reward": sum(said.values()),
                    "advantage": 0.0,
                    "completion_tokens": 1,
                    "finish_reason": "stop",
                }
            )
        most = self.run.lease.spec.record.rollouts_per_step
        kept = on_record([Rollout.model_validate(rollout) for rollout in rollouts], group_size=2, most=most)
        with self.run.sessions.begin() as session:
            leases.hold(session, self.run.lease)
            progress.add_rollouts(session, self.run.lease, step, [one.model_dump(mode="json") for one in kept])

    def evaluated(self, name: str, step: int, *completions: str) -> None:
        tasks = []
        for number, completion in enumerate(completions):
            right = completion == str(200 + 2 * number)
            answer = Answer(
                completion=completion, reward=float(right), passed=right, completion_tokens=1, finish_reason="stop"
            )
            tasks.append(TaskResult(task=number + 1, prompt_sha256="0" * 64, greedy=answer, sampled=()))
        evaluation = Evaluation(step=step, pass_threshold=1.0, tasks=tuple(tasks), seconds=1.0)
        with self.run.sessions.begin() as session:
            leases.hold(session, self.run.lease)
            progress.add_evaluation(session, self.run.lease, name, step, evaluation.model_dump(mode="json"))

    def add_version(self, source: str) -> RewardVersionId:
        response = self._client.post(f"/v1/rewards/{self.reward}/versions", json={"source": source})
        assert response.status_code in {200, 201}, response.text
        with self.run.sessions() as session:
            version = rewards.newest(session, RewardId(self.reward))
        assert version is not None
        return version.id

    def rescored(self, source: str = LENIENT, **body: Any) -> dict[str, Any]:
        self.add_version(source)
        response = self._client.post(f"{self.run.path}/rescore", json={"reward": self.reward, **body})
        assert (response.status_code, response.json()["status"]) == (200, "done"), response.text
        return dict(response.json()["report"])


@pytest.fixture
def job(client: TestClient, sessions: Sessions, settings: Settings) -> Job:
    return Job(client, sessions, settings)


def test_rollouts_are_graded_by_the_other_version_and_compared(job: Job):
    job.wrote(1, "0", "it is 0", "no", "it is 2")
    job.wrote(2, "0", "no", "2", "skip")
    report = job.rescored()
    assert (report["rollouts"], report["left_out"], report["errors"], report["no_answer"]) == (8, 0, 0, 1)
    first, second = report["steps"]
    assert (first["step"], first["old"], first["new"]) == (1, 0.25, 0.75)
    assert (second["step"], second["old"], second["new"]) == (2, 0.5, pytest.approx(2 / 3))
    assert report["verdicts"] == {"compared": 7, "failed_to_passed": 2, "passed_to_failed": 0}
    assert report["ranks"]["newly_equal"] == 1
    assert report["flat"]["share_old"] == 0.25
    assert {example["completion"] for example in report["most_changed"]} == {"it is 0", "it is 2"}
    assert report["evaluations"] == []


def test_an_error_of_the_new_version_is_counted_and_is_no_number(job: Job):
    job.wrote(1, "0", "crash", "2", "crash")
    report = job.rescored()
    assert (report["errors"], report["no_answer"], report["mean_new"]) == (2, 0, 1.0)
    assert "cannot read this" in report["last_error"]
    assert report["verdicts"]["compared"] == 2


def test_held_out_answers_are_graded_again_with_their_own_rows(job: Job):
    job.wrote(1, "0", "0", "2", "2")
    job.evaluated("baseline", 0, "200", "it is 202", "crash")
    job.evaluated("final", 4, "no", "202", "204")
    baseline, final = job.rescored()["evaluations"]
    assert (baseline["name"], baseline["answers"], baseline["errors"]) == ("baseline", 3, 1)
    assert (baseline["mean_old"], baseline["mean_new"]) == (pytest.approx(1 / 3), 1.0)
    assert baseline["verdicts"]["failed_to_passed"] == 1
    assert (final["name"], final["mean_old"], final["mean_new"]) == (
        "final",
        pytest.approx(2 / 3),
        pytest.approx(2 / 3),
    )


def test_only_the_steps_that_are_asked_for_are_graded(job: Job):
    for step in range(1, 5):
        job.wrote(step, "0", "no", "2", "no")
    report = job.rescored(from_step=2, to_step=4)
    assert [step["step"] for step in report["steps"]] == [2, 3, 4]
    limited = job.rescored(limit=8)
    assert ([step["step"] for step in limited["steps"]], limited["left_out"]) == ([1, 4], 8)


def test_other_terms_keep_their_word_and_gates_count(client: TestClient, sessions: Sessions, settings: Settings):
    gated = {"builtin": "length", "max": 20, "unit": "chars", "gate": {"reward": "exact"}}
    job = Job(client, sessions, settings, gated)
    word = [{"exact": 1.0, "length": 1.0}, {"exact": 0.0, "length": 1.0}, {"exact": 0.0, "length": 0.5}]
    job.wrote(1, "0", "it is 0", "no", "it is 2", grades=[*word, {"exact": 0.0, "length": 0.5}])
    report = job.rescored(term="exact")
    assert [example["new"] for example in report["most_changed"]] == [2.0, 1.5, 0.0]
    assert report["evaluations"] is None


def test_a_version_that_does_not_load_fails_with_the_reason(client: TestClient, job: Job):
    job.wrote(1, "0", "0", "2", "2")
    path = f"/v1/rewards/{job.reward}/versions"
    client.post(path, json={"source": "1 / 0\n" + STRICT})
    response = client.post(f"{job.run.path}/rescore", json={"reward": job.reward})
    task = response.json()
    assert (response.status_code, task["status"], task["report"]) == (200, "failed", None)
    assert "ZeroDivisionError" in task["error"]["message"]


def test_a_job_without_rollouts_has_an_empty_report(job: Job):
    report = job.rescored()
    assert (report["rollouts"], report["steps"], report["mean_new"]) == (0, [], None)


def test_of_a_cut_record_only_whole_groups_count_and_the_report_says_so(
    client: TestClient, sessions: Sessions, settings: Settings
):
    """Of two groups, one of them silent, there is room for the mixed one and a half."""
    job = Job(client, sessions, settings, kept_rollouts=3)
    job.wrote(1, "it is 0", "0", "2", "2")
    job.run.step(1, **{"signal/silent_share": 0.5})
    report = job.rescored()
    assert (report["rollouts"], report["left_out"]) == (2, 0)
    assert report["coverage"] == {"rollouts": 4, "groups": 2, "recorded_rollouts": 2, "recorded_groups": 1}
    assert (report["flat"]["share_old"], report["flat"]["run_silent_share"]) == (0.0, 0.5)
    assert report["steps"][0]["run_silent_share"] == 0.5
    (cut,) = report["notes"]
    assert "of the recorded groups, 1 of 2" in cut


def test_groups_that_dynamic_sampling_added_are_missed_too_where_they_are_not_on_record(job: Job):
    job.wrote(1, "it is 0", "0", "2", "2")
    job.run.step(1, **{"draw/groups_generated": 5})
    coverage = job.rescored()["coverage"]
    assert coverage == {"rollouts": 10, "groups": 5, "recorded_rollouts": 4, "recorded_groups": 2}


def test_of_a_step_whose_metrics_are_not_told_yet_the_record_says_how_many_there_were(job: Job):
    job.wrote(1, "it is 0", "0", "2", "2", "4", "it is 4")
    coverage = job.rescored()["coverage"]
    assert coverage == {"rollouts": 6, "groups": 3, "recorded_rollouts": 6, "recorded_groups": 3}


def test_a_group_with_a_rollout_that_is_not_on_record_is_left_out(job: Job):
    job.wrote(1, "0", "it is 0", "it is 2")
    report = job.rescored()
    assert (report["rollouts"], report["left_out"], report["coverage"]["recorded_groups"]) == (2, 1, 1)
    assert "1 in groups that are not on record whole" in report["notes"][1]


def test_a_reward_that_crashes_and_loads_slowly_loses_nothing_that_was_graded(job: Job, settings: Settings, tmp_path):
    job.wrote(1, "0", "no", "2", "2")
    for step in range(2, 12):
        job.wrote(step, *["end"] * 4)
    source = "import os, time\ntime.sleep(1)\n" + STRICT.replace(
        "    return", "    if completion == 'end':\n        os._exit(1)\n    return"
    )
    version_id = job.add_version(source)
    asked = Rescore(
        job_id=job.run.job_id, version_id=version_id, term="exact", from_step=0, to_step=11, limit=MOST_ROLLOUTS
    )
    place = Workplace(job.run.sessions, open_store(settings))
    context = Context(place, job.run.lease.tenant_id, tmp_path, rescore.SPARE_S + 6)
    report = rescore.handle(asked.model_dump(mode="json"), context)
    assert report["steps"][0]["new"] == 0.75
    assert report["rollouts"] < 8, "the six restarts that step 2 needs take longer"
    assert report["rollouts"] + report["left_out"] == 44
    assert "for want of time" in report["notes"][-1]


def test_a_trl_reward_is_told_to_have_had_another_batch(job: Job):
    job.wrote(1, "0", "it is 0")
    report = job.rescored("def reward(completions, **columns):\n    return [len(completions) for _ in completions]\n")
    assert report["mean_new"] == 2.0
    assert any("recorded part of each" in note for note in report["notes"])


def test_steps_that_a_resume_has_superseded_are_not_compared(job: Job):
    for step in (1, 2, 3):
        job.wrote(step, "0", "no", "2", "no")
        job.run.step(step)
    job.evaluated("step-3", 3, "200")
    job.run = job.run.again()
    job.run.resume_from(1)
    job.wrote(2, "0", "0", "0", "0")
    report = job.rescored()
    assert [(step["step"], step["old"]) for step in report["steps"]] == [(1, 0.5), (2, 0.5)]
    assert report["evaluations"] == []


def test_a_rollout_that_another_term_failed_on_is_no_missing_answer(
    client: TestClient, sessions: Sessions, settings: Settings
):
    job = Job(client, sessions, settings, {"builtin": "length", "max": 20, "unit": "chars"})
    job.wrote(1, "0", "0", "2", "2", grades=[{"exact": 1.0, "length": 1.0}] * 4)
    with sessions.begin() as session:
        for record in progress.rollouts(session, job.run.job_id, step=1):
            failed = {"outcome": "user_error", "value": None, "error": "ValueError: oh"}
            grades = {**record.rollout["grades"], "length": failed}
            record.rollout = {**record.rollout, "grades": grades, "reward": None}
    report = job.rescored(term="exact")
    assert (report["errors"], report["other_errors"], report["no_answer"]) == (0, 4, 0)
