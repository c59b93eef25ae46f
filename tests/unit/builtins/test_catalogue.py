"""The catalogue: every built-in has an example that works, a page that says all, and something that computes it."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from core.builtin_rewards.catalogue import BUILTINS, bind_builtin, names_of, parse_builtin, unknown_builtin
from core.settings import CHECKOUT
from worker.grading.builtins import load
from worker.grading.builtins.registry import UnknownBuiltinError
from worker.grading.grades import GradeOutcome, Rollout

PAGE = Path(CHECKOUT, "docs/builtin-rewards.md").read_text()
ELSEWHERE = {"http", "code_tests", "formula"}
"""Graded outside of the sandbox."""

every_builtin = pytest.mark.parametrize("name", BUILTINS)


def section(name: str) -> str:
    match = re.search(rf"^### {name}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None, f"docs/builtin-rewards.md says nothing of {name}"
    return match[1]


@every_builtin
def test_its_example_is_valid_and_survives_storage(name: str) -> None:
    parameters = parse_builtin({"builtin": name, **BUILTINS[name].example})
    assert parse_builtin(json.loads(parameters.model_dump_json())) == parameters


@every_builtin
def test_its_page_says_what_it_does_with_every_parameter_and_default(name: str) -> None:
    text = " ".join(section(name).split())
    for paragraph in (BUILTINS[name].__doc__ or "").split("\n\n"):
        assert " ".join(paragraph.split()) in text
    assert json.dumps({"builtin": name, **BUILTINS[name].example}) in text
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*)$", section(name), re.MULTILINE))
    assert list(rows) == names_of(name)
    for key, field in BUILTINS[name].model_fields.items():
        if key != "builtin":
            default = (
                "required" if field.is_required() else f"`{json.dumps(field.get_default(call_default_factory=True))}`"
            )
            assert rows[field.alias or key] == f"{default} | {field.description or ''} |"


@pytest.mark.parametrize("name", sorted(BUILTINS.keys() - ELSEWHERE))
def test_the_grading_process_can_load_it(name: str) -> None:
    assert load(name, BUILTINS[name].example)([], 0) == []


ROW = {
    "answer": "B",
    "keywords": ["a", "b"],
    "record": {"name": "Ada", "death_date": None},
    "summary": "A cat.",
    "solution": "7",
}


@pytest.mark.parametrize("name", sorted(BUILTINS.keys() - ELSEWHERE - {"numeric"}))
@settings(max_examples=60)
@given(text=st.text(st.characters(exclude_categories=())), ids=st.lists(st.integers(0, 9)))
def test_no_completion_breaks_it(name: str, text: str, ids: list[int]) -> None:
    (grade,) = load(name, BUILTINS[name].example)([Rollout("", text, ids, ROW)], 0)
    assert grade.outcome is GradeOutcome.SCORED, grade
    assert grade.value is not None
    assert -1.0 <= grade.value <= 1.0


@pytest.mark.parametrize("name", [*sorted(ELSEWHERE), "magic"])
def test_the_grading_process_loads_nothing_else(name: str) -> None:
    with pytest.raises(UnknownBuiltinError):
        load(name, {})


def test_parameters_that_are_wrong_are_refused_when_loading() -> None:
    with pytest.raises(UnknownBuiltinError, match="column"):
        load("exact_match", {})


@pytest.mark.parametrize(
    "parameters",
    [
        {"builtin": "numeric", "column": "a", "extract": "regex"},
        {"builtin": "numeric", "column": "a", "pattern": "x"},
        {"builtin": "numeric", "column": "a", "tolerance": float("nan")},
        {"builtin": "regex", "pattern": "(a)", "group": 1},
        {"builtin": "regex", "pattern": "(a)", "column": "a", "group": 2},
        {"builtin": "regex", "pattern": "a", "flags": "L"},
        {"builtin": "regex", "pattern": "a" * 1001},
        {"builtin": "contains"},
        {"builtin": "contains", "text": "a", "column": "a"},
        {"builtin": "json_schema", "schema": {"description": "x" * 70_000}},
        {"builtin": "json_fields", "column": "a", "weights": {"x": 0}},
        {"builtin": "json_fields", "column": "a", "weights": {f"f{n}": 1 for n in range(31)}},
        {"builtin": "format_tags", "tags": ["a b"]},
        {"builtin": "length"},
        {"builtin": "length", "target": 5, "max": 6},
        {"builtin": "length", "min": 6, "max": 5},
        {"builtin": "length", "target": 5, "shape": "step"},
        {"builtin": "length", "max": 5, "after": "x"},
        {"builtin": "overlong", "max": 5, "buffer": 6},
        {"builtin": "repetition", "max_penalty": 1},
        {"builtin": "text_similarity", "column": "a", "metric": "meteor"},
        {"builtin": "text_similarity", "metric": "bleu"},
        {"builtin": "formula", "expression": "log(a - 1)"},
        {"builtin": "http", "url": "https://user:password@x/"},
        {"builtin": "http", "url": "https://x:99999/"},
        {"builtin": "http", "url": "https://x/", "secret": "whsec_short"},
        {"builtin": "http", "url": "https://x/", "headers": {"Host": "y"}},
        {"builtin": "http", "url": "https://x/", "headers": {"webhook-id": "y"}},
        {"builtin": "http", "url": "https://x/", "headers": {"X": "a\r\nY: b"}},
        {"builtin": "code_tests", "column": "a", "language": "c"},
    ],
)
def test_parameters_that_contradict_each_other_are_refused(parameters: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        parse_builtin(parameters)


def test_unknown_names_and_columns_come_with_the_nearest() -> None:
    assert unknown_builtin("jsonfields", field="f").fix == "Did you mean `json_fields`?"
    parameters = parse_builtin({"builtin": "exact_match", "column": "anwser"})
    (problem,) = bind_builtin(parameters, ["answer"], name="exact", field="training_file")
    assert problem.fix == "Did you mean `answer`?"
