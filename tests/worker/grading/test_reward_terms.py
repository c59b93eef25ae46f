"""A job's reward terms of every kind, opened and asked as the trainer does it."""

from pathlib import Path
from typing import Any

import pytest

from core.builtin_rewards.catalogue import parse_builtin
from core.builtin_rewards.outside import Credentials
from core.rows import Row
from core.spec import BuiltinReward, Gate, RewardTerm
from tests.factories import make_reward
from tests.unit.builtins.endpoint_server import endpoint
from tests.worker.grading.conftest import descriptors_left
from worker.grading.grades import GradeOutcome, Rollout
from worker.grading.rules import PRIVATE_URLS_VARIABLE, UNSAFE_VARIABLE
from worker.grading.terms import BuiltinGrader, grader_of
from worker.run_directory import RunDirectory
from worker.training.failures import GradersDown, RewardUnusable
from worker.training.rewards import Completion, open_rewards

SECRET = "whsec_" + "QUFB" * 8


def builtin(builtin: str, *, gate: Gate | None = None, weight: float = 1.0, **parameters: Any) -> BuiltinReward:
    checked = parse_builtin({"builtin": builtin, **parameters})
    return BuiltinReward(name=builtin, weight=weight, gate=gate, parameters=checked)


def rollouts(*completions: str, **columns: Any) -> list[Rollout]:
    return [Rollout("What?", completion, [1, 2, 3], columns) for completion in completions]


@pytest.mark.parametrize(
    ("parameters", "completion", "columns", "wanted"),
    [
        ({"builtin": "exact_match", "column": "a"}, "Paris", {"a": "Paris"}, 1.0),
        ({"builtin": "math", "column": "a"}, r"\boxed{\frac{2}{4}}", {"a": r"\frac{1}{2}"}, 1.0),
        ({"builtin": "json_schema", "schema": {"type": "object"}}, "{}", {}, 1.0),
        ({"builtin": "json_fields", "column": "a"}, '{"x": 1}', {"a": {"x": 1, "y": 2}}, 0.5),
        ({"builtin": "text_similarity", "column": "a", "metric": "rouge_l"}, "the cat", {"a": "the cat"}, 1.0),
        ({"builtin": "repetition", "ngram": 1}, "", {}, 0.0),
    ],
)
def test_a_built_in_grades_in_a_sandbox(
    parameters: dict[str, Any], completion: str, columns: dict[str, Any], wanted: float
) -> None:
    with BuiltinGrader(parse_builtin(parameters)) as grader:
        (grade,) = grader.grade(rollouts(completion, **columns))
    assert (grade.outcome, grade.value, grade.message) == (GradeOutcome.SCORED, wanted, None)


def test_a_pattern_that_runs_away_costs_one_rollout_and_no_sandbox() -> None:
    with BuiltinGrader(parse_builtin({"builtin": "regex", "pattern": "(a|aa)+$"})) as grader:
        bad, good = grader.grade(rollouts("a" * 60 + "b", "aa"))
        assert grader.restarts == 0
    assert (bad.outcome, good.value) == (GradeOutcome.USER_ERROR, 1.0)


def test_credentials_come_from_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "http.py"
    kept.write_text(Credentials(secret=SECRET, headers={"X-Token": "t"}).model_dump_json())
    monkeypatch.setenv(PRIVATE_URLS_VARIABLE, "true")
    with endpoint() as here:
        term = builtin("http", url=f"http://127.0.0.1:{here.port}/").model_copy(update={"credentials_sha256": "0" * 64})
        grader = grader_of(term, kept)
        assert grader is not None
        with grader:
            (grade,) = grader.grade(rollouts("x"))
    assert grade.value == 1.0
    ((headers, _),) = here.requests
    assert (headers["X-Token"], "webhook-signature" in headers) == ("t", True)


def test_private_addresses_are_refused_unless_the_operator_allows_them(tmp_path: Path) -> None:
    with endpoint() as here:
        grader = grader_of(builtin("http", url=f"http://127.0.0.1:{here.port}/"), tmp_path / "none")
        assert grader is not None
        with grader:
            (grade,) = grader.grade(rollouts("x"))
    assert (grade.outcome, here.requests) == (GradeOutcome.USER_ERROR, [])


def test_terms_of_all_kinds_make_one_reward(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    source = run.reward_source("length")
    source.parent.mkdir(parents=True)
    source.write_text("def reward(completion):\n    return len(completion) / 10\n")
    terms: list[RewardTerm] = [
        builtin("format_tags", tags=["a"], weight=0.5),
        make_reward("length", gate=Gate(reward="format_tags")),
        builtin("formula", expression="10 * format_tags", weight=0.1),
    ]
    answers = [Completion(Row(1, "What?", {}), text, [1], is_truncated=False) for text in ("<a>1</a>", "0123456789")]
    with open_rewards(run, terms) as rewards:
        assert rewards.names == ["format_tags", "length", "formula"]
        good, bad = rewards.score(answers, step=0)
    assert good.reward == pytest.approx(0.5 + 0.8 + 1.0)
    assert [good.value(name) for name in rewards.names] == [1.0, 0.8, 10.0]
    assert bad.reward == 0.0
    assert (bad.value("length"), bad.grades["length"].value) == (0.0, 1.0)


def loaded(run: RunDirectory, source: str) -> str:
    path = run.reward_source("length")
    path.parent.mkdir(parents=True)
    path.write_text(source)
    with open_rewards(run, [make_reward("length")]) as rewards:
        return rewards.names[0]


def test_a_machine_without_room_for_a_grader_is_not_the_rewards_fault(tmp_path: Path) -> None:
    source = "def reward(completion):\n    return 1.0\n"
    with descriptors_left(2), pytest.raises(GradersDown, match="cannot be started") as raised:
        loaded(RunDirectory(tmp_path), source)
    assert raised.value.detail.retryable


def test_a_reward_whose_loading_crashes_once_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a sandbox, so that it may remember."""
    monkeypatch.setenv(UNSAFE_VARIABLE, "true")
    mark = tmp_path / "mark"
    crash = "import os, pathlib\nmark = pathlib.Path({!r})\nif not mark.exists():\n    mark.touch()\n    os._exit(3)\n"
    source = crash.format(str(mark)) + "def reward(completion):\n    return 1.0\n"
    assert loaded(RunDirectory(tmp_path), source) == "length"


def test_a_reward_whose_loading_always_crashes_is_at_fault(tmp_path: Path) -> None:
    with pytest.raises(RewardUnusable, match="exited with code 3") as raised:
        loaded(RunDirectory(tmp_path), "import os\nos._exit(3)\ndef reward(completion):\n    return 1.0\n")
    assert not raised.value.detail.retryable
