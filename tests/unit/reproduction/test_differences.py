"""Which figures of two runs differ, from where on, and by how much; and what around the runs may explain it."""

import copy
from collections.abc import Mapping

import pytest

from cli.reproduction.differences import ABSENT, Figure, Judgement, compare
from cli.reproduction.record import Record
from cli.reproduction.report import Comparison, figure_rows, group_rows, reason_rows, sentences
from cli.reproduction.surroundings import differences
from core.status import JobStatus
from tests.factories import make_data_ref, make_reward, make_spec
from tests.samples import results_document
from tests.unit.reproduction.bundles import CPU, STEPS, make_bundle, make_job, make_record
from tests.unit.test_verdict import RIGHT, WRONG, evaluation


def changed(step: int, **metrics: float | None) -> dict[int, Mapping[str, float | None]]:
    return {**STEPS, step: {**STEPS[step], **metrics}}


def unequal(recorded: Record, rerun: Record, *, tolerance: float = 0.0) -> dict[str, Figure]:
    figures = compare(recorded, rerun, tolerance=tolerance)
    return {f"{one.group}: {one.name}": one for one in figures if one.judgement is not Judgement.EQUAL}


def comparison(recorded: Record, rerun: Record, *, tolerance: float = 0.0, **facts) -> Comparison:
    return Comparison(
        figures=compare(recorded, rerun, tolerance=tolerance),
        surroundings=differences(recorded.bundle, rerun.bundle),
        replaced=facts.get("replaced", ()),
        spec=rerun.bundle.spec,
        device=facts.get("device", "cpu"),
    )


def test_equal_runs_are_equal_whatever_their_clocks_say():
    slow = changed(2, **{"step_time": 99.0, "phase/forward": 98.0, "grader/latency_p50": 97.0})
    assert unequal(make_record(), make_record(metrics=slow)) == {}
    assert len(compare(make_record(), make_record())) > 2


def test_a_metric_that_differs_says_where_first_how_often_and_by_how_much():
    rerun = make_record(metrics=changed(2, reward=0.4) | {3: {**STEPS[3], "reward": 0.6}})
    (figure,) = unequal(make_record(), rerun).values()
    assert (figure.group, figure.name, figure.judgement) == ("step metrics", "reward", Judgement.DIFFERS)
    assert figure.first is not None
    assert (figure.first.place, figure.first.recorded, figure.first.rerun) == ("step 2", 0.5, 0.4)
    assert (figure.differing, figure.places) == (2, 3)
    assert figure.largest == pytest.approx(0.2)


def test_a_number_against_none_differs_under_any_tolerance():
    (figure,) = unequal(make_record(), make_record(metrics=changed(3, loss=0.0)), tolerance=1.0).values()
    assert (figure.name, figure.judgement, figure.largest) == ("loss", Judgement.DIFFERS, None)


@pytest.mark.parametrize(("tolerance", "judgement"), [(0.1, Judgement.ACCEPTED), (0.01, Judgement.DIFFERS)])
def test_a_tolerance_is_a_share_of_the_larger_number(tolerance: float, judgement: Judgement):
    (figure,) = unequal(make_record(), make_record(metrics=changed(2, loss=-0.24)), tolerance=tolerance).values()
    assert figure.judgement is judgement
    assert figure.largest == pytest.approx(0.04)


def test_a_step_that_one_run_lacks_differs_under_any_tolerance():
    short = {step: metrics for step, metrics in STEPS.items() if step < 3}
    for recorded, rerun in ((STEPS, short), (short, STEPS)):
        found = unequal(make_record(metrics=recorded), make_record(metrics=rerun), tolerance=0.5)
        assert {one.judgement for one in found.values()} == {Judgement.DIFFERS}
        assert {one.first.place for one in found.values() if one.first} == {"step 3"}
        assert ABSENT in {
            value for one in found.values() if one.first for value in (one.first.recorded, one.first.rerun)
        }


def test_of_a_job_that_was_cancelled_only_what_it_had_come_to_is_compared():
    short = {step: metrics for step, metrics in STEPS.items() if step < 3}
    cancelled = make_record(metrics=short, job=make_job(JobStatus.CANCELLED), adapter_sha256=None)
    further = make_record(evaluations={"final": evaluation([RIGHT])})
    assert set(unequal(cancelled, further)) == set()
    assert "step metrics: reward" in unequal(cancelled, make_record(metrics=changed(1, reward=0.0)))


def test_a_rerun_that_does_not_end_as_the_job_did_differs():
    found = unequal(make_record(), make_record(job=make_job(JobStatus.FAILED)), tolerance=1.0)
    assert found["job: status"].judgement is Judgement.DIFFERS


def test_evaluations_are_compared_answer_by_answer():
    first = make_record(evaluations={"final": evaluation([RIGHT, RIGHT, WRONG])})
    second = make_record(evaluations={"final": evaluation([RIGHT, WRONG, WRONG])})
    found = unequal(first, second)
    assert set(found) == {"evaluation final: reward", "evaluation final: passed"}
    figure = found["evaluation final: passed"]
    assert figure.first is not None
    assert (figure.first.place, figure.differing, figure.places) == ("line 1 greedy", 2, 6)


def test_an_evaluation_that_was_not_taken_again_differs():
    found = unequal(make_record(evaluations={"final": evaluation([RIGHT])}), make_record())
    assert {name.partition(":")[0] for name in found} == {"evaluation final"}


def test_texts_and_digests_do_not_count_under_a_tolerance_but_their_numbers_do():
    answers = evaluation([RIGHT])
    (task,) = answers.tasks
    said = answers.model_copy(
        update={"tasks": (task.model_copy(update={"greedy": task.greedy.model_copy(update={"completion": "y"})}),)}
    )
    first = make_record(evaluations={"final": answers})
    second = make_record(evaluations={"final": said}, adapter_sha256="9" * 64)
    assert {one.judgement for one in unequal(first, second).values()} == {Judgement.DIFFERS}
    found = unequal(first, second, tolerance=1e-6)
    assert {name: one.judgement for name, one in found.items()} == {
        "evaluation final: completion": Judgement.ACCEPTED,
        "adapter: sha256": Judgement.ACCEPTED,
    }


def test_scores_and_verdict_are_compared_and_how_long_it_took_is_not():
    verdict = results_document()["verdict"]
    again = make_record(results={"verdict": {**verdict, "broken": 8}, "time": {"total": 9.0}})
    assert set(unequal(make_record(), again)) == {"results.json: verdict.broken"}


def test_what_an_older_version_did_not_write_is_no_difference():
    baseline = copy.deepcopy(results_document()["baseline"])
    new = {**baseline, "greedy": {**baseline["greedy"], "mean_reward_ci95": [0.1, 0.2]}}
    baseline["greedy"].pop("mean_reward_ci95", None)
    assert unequal(make_record(results={"baseline": baseline}), make_record(results={"baseline": new})) == {}


def test_versions_and_device_are_named_as_the_likely_reason():
    gpu = CPU.model_copy(update={"device": "NVIDIA H200", "libraries": {"torch": "2.14.0"}})
    found = differences(make_bundle(), make_bundle(environment=gpu, podium="0.2.0"))
    assert [(one.what, one.recorded, one.rerun) for one in found] == [
        ("podium", "0.1.0", "0.2.0"),
        ("device", "cpu", "NVIDIA H200"),
        ("torch", "2.13.0", "2.14.0"),
    ]


def test_ids_of_one_server_are_no_difference_and_digests_are():
    spec = make_spec()
    same = spec.model_copy(update={"training": make_data_ref().model_copy(update={"filename": "training.jsonl"})})
    assert differences(make_bundle(spec=spec), make_bundle(spec=same)) == []
    other = spec.model_copy(update={"rewards": (make_reward(source="# another\n"),)})
    assert [one.what for one in differences(make_bundle(spec=spec), make_bundle(spec=other))] == [
        "rewards[0].source_sha256"
    ]


def test_an_environment_that_one_run_does_not_tell_is_no_difference():
    assert differences(make_bundle(), make_bundle(environment=None)) == []


def test_the_report_of_equal_runs_is_a_count_and_a_sentence():
    same = comparison(make_record(), make_record())
    assert same.agrees
    assert list(figure_rows(same)) == list(reason_rows(same)) == []
    assert list(sentences(same)) == [f"All {len(same.figures)} figures are equal, to the last bit."]
    heading, *groups = group_rows(same)
    assert heading == ("figures", "compared", "equal", "accepted", "differs")
    assert ("step metrics", "2", "2", "0", "0") in groups


def test_the_report_of_unequal_runs_says_what_where_and_why():
    other = CPU.model_copy(update={"libraries": {"torch": "2.14.0"}})
    found = comparison(make_record(), make_record(metrics=changed(2, reward=0.4), environment=other))
    assert not found.agrees
    _, row = figure_rows(found)
    assert row == ("step metrics: reward", "differs", "step 2", "0.5", "0.4", "1/3", "0.2")
    assert list(sentences(found)) == [f"1 of {len(found.figures)} figures differ.", "Likely because of: torch."]


def test_within_the_tolerance_the_runs_agree():
    found = comparison(make_record(), make_record(metrics=changed(2, reward=0.4)), tolerance=0.5)
    assert found.agrees
    assert "1 of" in next(sentences(found))


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"replaced": ("exact",)}, "Replaced on purpose: exact."),
        ({"device": "NVIDIA H200"}, "GPU"),
        ({}, "another kind of CPU"),
    ],
)
def test_without_another_version_the_likely_reason_is_the_machine(facts, reason):
    *_, said = sentences(comparison(make_record(), make_record(metrics=changed(2, reward=0.4)), **facts))
    assert reason in said
