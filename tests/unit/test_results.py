"""`results.json`: the published schema is the one of the code, and what is built keeps it."""

import json
from datetime import UTC, datetime

import pytest
from jsonschema import Draft202012Validator, ValidationError

from bench._chaos.samples import make_summary
from core.db.models import Job, JobAttempt
from core.learning.finding import LearningFinding, Severity
from core.results import ArtifactFacts, JobResults, json_schema
from core.settings import CHECKOUT
from core.spec import ResourcesSpec
from core.status import JobStatus
from tests.factories import TENANT, make_spec
from tests.samples import results_document
from tests.unit.test_verdict import RIGHT, WRONG, evaluation
from worker import results
from worker.results import LedgerFacts

SCHEMA = CHECKOUT / "docs/results.schema.json"
START = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
END = datetime(2026, 11, 29, 13, 0, tzinfo=UTC)


def facts(**changes) -> LedgerFacts:
    job = Job(
        id="ftjob-1",
        tenant_id=TENANT,
        status=JobStatus.RUNNING,
        created_at=START,
        started_at=START,
        suffix="bio",
        metadata_={"team": "search"},
        preemptions=1,
    )
    attempts = [
        JobAttempt(attempt=1, started_at=START, ended_at=END, last_step=3, ended="preempted"),
        JobAttempt(attempt=2, started_at=END, ended_at=None, last_step=4, ended=None, resumed_from_step=3),
    ]
    found = {
        "job": job,
        "attempts": attempts,
        "evaluations": {
            "baseline": evaluation([WRONG] * 10),
            "step-2": evaluation([RIGHT] * 9 + [WRONG], step=2),
            "final": evaluation([RIGHT] * 8 + [WRONG] * 2, step=4),
        },
        "artifacts": [ArtifactFacts(name="adapter/adapter_model.safetensors", size_bytes=5, sha256="a" * 64)],
        "now": END,
        "held_seconds": 5400.0,
        "redone_steps": 2,
    }
    return LedgerFacts(**(found | changes))


def build(**changes) -> JobResults:
    return results.build(make_spec(), make_summary(4), facts(**changes), usd_per_hour=2.0)


def validate(document) -> None:
    Draft202012Validator(json.loads(json_schema())).validate(document)


def test_the_committed_schema_is_the_generated_one():
    """If it is not: `python -m core.results > docs/results.schema.json`."""
    assert SCHEMA.read_text() == json_schema()


def test_the_schema_is_a_schema():
    Draft202012Validator.check_schema(json.loads(json_schema()))


def test_a_built_document_keeps_the_schema_and_reads_back():
    document = build()
    validate(json.loads(document.model_dump_json()))
    assert JobResults.model_validate_json(document.model_dump_json()) == document


ALL_WRONG = LearningFinding(
    "all_wrong", Severity.ERROR, "Nothing was ever right.", "Raise it.", "Try SFT.", 3, {"silent_all_wrong": 0.9}
)
FEW_TASKS = LearningFinding("few_held_out_tasks", Severity.INFO, "Few tasks.", "Give more.", "Sample more.")
NO_CHANGE = {"baseline": evaluation([WRONG] * 10), "final": evaluation([WRONG] * 10, step=4)}


def test_findings_are_in_the_document_and_the_gravest_explains_a_verdict_without_change():
    document = build(evaluations=NO_CHANGE, findings=[FEW_TASKS, ALL_WRONG])
    validate(json.loads(document.model_dump_json()))
    assert [finding.code for finding in document.diagnostics.findings] == ["few_held_out_tasks", "all_wrong"]
    assert document.verdict.sentence.endswith(" Nothing was ever right.")


@pytest.mark.parametrize(("silent_share", "is_said"), [(0.97, True), (0.5, False), (None, False)])
def test_without_a_finding_silence_explains_it(silent_share, is_said):
    summary = make_summary(4).model_copy(update={"silent_share": silent_share})
    document = results.build(make_spec(), summary, facts(evaluations=NO_CHANGE, findings=[FEW_TASKS]), usd_per_hour=0.0)
    assert ("In 97% of the groups all rewards were equal" in document.verdict.sentence) is is_said
    assert "Few tasks" not in document.verdict.sentence


def test_what_dynamic_sampling_left_out_is_counted():
    summary = make_summary(4).model_copy(update={"left_out_rollouts": 16, "left_out_tokens": 120})
    document = results.build(make_spec(), summary, facts(), usd_per_hour=0.0)
    validate(json.loads(document.model_dump_json()))
    assert (document.diagnostics.left_out_rollouts, document.tokens.left_out) == (16, 120)


def test_the_sample_that_other_tests_read_is_a_document():
    JobResults.model_validate(results_document())


@pytest.mark.parametrize("name", ["verdict", "baseline", "artifacts", "cost"])
def test_a_document_without_one_of_its_parts_breaks_the_schema(name):
    document = json.loads(build().model_dump_json())
    del document[name]
    with pytest.raises(ValidationError):
        validate(document)


def test_an_unknown_field_breaks_the_schema():
    with pytest.raises(ValidationError):
        validate(json.loads(build().model_dump_json()) | {"mood": "good"})


def test_the_best_evaluation_is_chosen_among_all_but_the_verdict_is_on_the_final_one():
    document = build()
    assert document.best.name == "step-2"
    assert (document.verdict.fixed, document.final.greedy.passed) == (8, 8)
    assert [score.name for score in document.evaluations] == ["baseline", "step-2", "final"]


def test_an_evaluation_that_met_too_many_errors_is_not_the_best_and_its_tasks_are_named():
    good = evaluation([RIGHT] * 10, step=2)
    failed = {"reward": None, "passed": None, "error": "ValueError: oh"}
    tasks = [
        task.model_copy(update={"greedy": task.greedy.model_copy(update=failed)}) if task.task < 3 else task
        for task in good.tasks
    ]
    unreliable = good.model_copy(update={"tasks": tuple(tasks)})
    document = build(evaluations={**facts().evaluations, "step-2": unreliable})
    assert document.best.name == "final"
    score = next(score for score in document.evaluations if score.name == "step-2")
    assert (score.ungraded_tasks, score.greedy.errors, score.greedy.mean_reward) == ((0, 1, 2), 3, 1.0)
    two = good.model_copy(update={"tasks": (*tasks[:2], *good.tasks[2:])})
    assert build(evaluations={**facts().evaluations, "step-2": two}).best.name == "step-2"


def test_of_equally_good_evaluations_the_earliest_is_best():
    same = evaluation([RIGHT] * 10)
    later = same.model_copy(update={"step": 4})
    document = build(evaluations={"final": later, "step-2": same.model_copy(update={"step": 2}), "baseline": same})
    assert document.best.name == "baseline"


def test_every_attempt_is_listed_and_the_one_that_writes_ends_with_the_document():
    listed = [(a.attempt, a.ended, a.resumed_from_step, a.ended_at) for a in build().attempts]
    assert listed == [(1, "preempted", None, int(END.timestamp())), (2, "succeeded", 3, int(END.timestamp()))]


def test_the_cost_is_the_time_held_times_the_price():
    cost = build().cost
    assert (cost.gpu_seconds, cost.usd, cost.redone_steps) == (5400.0, 3.0, 2)


def test_every_gpu_of_a_job_is_paid_for():
    spec = make_spec(resources=ResourcesSpec(gpus=4))
    cost = results.build(spec, make_summary(4), facts(), usd_per_hour=2.0).cost
    assert (cost.gpu_seconds, cost.usd_per_hour, cost.usd) == (4 * 5400.0, 2.0, 4 * 3.0)


def test_the_digest_of_the_parameters_changes_with_the_spec():
    spec = make_spec()
    digests = [
        results.build(one, make_summary(4), facts(), usd_per_hour=2.0).parameters.sha256
        for one in (spec, spec, spec.model_copy(update={"seed": 43}))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_the_digest_of_a_sharded_model_depends_on_every_shard_and_of_one_file_is_its_own():
    shards = [ArtifactFacts(name=f"adapter/model-{n}.safetensors", size_bytes=1, sha256=str(n) * 64) for n in range(3)]
    digests = {build(artifacts=some).model.adapter_sha256 for some in (shards, shards[:2], shards[1:])}
    assert len(digests) == 3
    assert build(artifacts=shards[:1]).model.adapter_sha256 == "0" * 64
