"""Watched fields: how they are named and found, and what is counted of a step's completions."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from core.rows import Row
from core.watch import WatchedField, parse_path, value_at
from worker.training.rewards import Completion
from worker.training.watch import Watch

GOLD: dict[str, Any] = {"died": "1863", "born": "1787"}
LIVING: dict[str, Any] = {"died": None, "born": "1990"}


def completion(text: str, record: object = GOLD) -> Completion:
    return Completion(Row(1, "prompt", {"record": record}), text, [1], is_truncated=False)


def metrics(field: dict[str, Any], *completions: Completion) -> dict[str, float]:
    watched = WatchedField.model_validate(field)
    found = Watch([watched]).metrics(completions)
    return {name.removeprefix(f"watch/{watched.label}/"): value for name, value in found.items()}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("$.death_date", ("death_date",)),
        ("$.a.b-c[0].d", ("a", "b-c", 0, "d")),
        ("$['odd name']", ("odd name",)),
        ('$[2]["x.y"]', (2, "x.y")),
    ],
)
def test_a_path_is_the_way_to_one_value(text: str, path: tuple[str | int, ...]):
    assert parse_path(text) == path


@pytest.mark.parametrize(
    "text", ["", "$", "death_date", "$.", "$..a", "$.*", "$[*]", "$.a[", "$[-1]", "$.a b", "$['a]"]
)
def test_what_is_no_path_to_one_value_is_refused(text: str):
    with pytest.raises(ValueError, match="is no path to one value"):
        parse_path(text)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_whatever_a_completion_is_a_path_finds_a_value_or_nothing(document: Any):
    value_at(document, ("a", 0, "b"))


@pytest.mark.parametrize(
    "field",
    [
        {},
        {"json_path": "$.a", "regex": "a"},
        {"regex": "??", "name": None},
        {"regex": "(", "name": "open"},
        {"regex": "[.]"},
        {"json_path": "$.a", "name": "a/b"},
    ],
)
def test_a_field_that_says_nothing_or_too_much_is_refused(field: dict[str, Any]):
    with pytest.raises(ValidationError):
        WatchedField.model_validate(field)


@pytest.mark.parametrize(
    ("field", "label"),
    [
        ({"json_path": "$.a.b"}, "a.b"),
        ({"json_path": "$['odd name'][0]"}, "odd_name.0"),
        ({"regex": "I cannot"}, "I_cannot"),
        ({"regex": "I cannot", "name": "refusal"}, "refusal"),
    ],
)
def test_a_field_has_a_name_that_metrics_can_carry(field: dict[str, Any], label: str):
    assert WatchedField.model_validate(field).label == label


def test_nulls_are_counted_where_the_data_have_a_value():
    lost, kept = json.dumps({"died": None}), json.dumps({"died": "1863"})
    found = metrics(
        {"json_path": "$.died", "column": "record"},
        completion(lost),
        completion(kept),
        completion("no JSON"),
        completion("{}"),
        completion(lost, LIVING),
    )
    assert found == {
        "rows": 4,
        "null_share": 0.75,
        "missing_share": 0.25,
        "match_share": 0.25,
        "distinct": 1,
        "unreadable_share": 0.2,
    }


@pytest.mark.parametrize(
    ("document", "path", "missing"),
    [
        ('{"a": null}', "$.a", False),
        ("{}", "$.a", True),
        ("[]", "$.a", True),
        ('{"a": [null]}', "$.a[0]", False),
        ('{"a": [null]}', "$.a[1]", True),
        ('{"a": null}', "$.a.b", True),
    ],
)
def test_a_null_is_told_from_what_is_not_there(document: str, path: str, missing: bool):
    found = metrics({"json_path": path}, completion(document))
    assert (found["null_share"], found["missing_share"]) == (1.0, float(missing))


def test_what_a_pattern_finds_is_compared_with_its_column():
    answers = ["the answer is 4", "the answer is 5", "who knows", "the answer is 7"]
    rows = ["4", 5, "6", None]
    found = metrics(
        {"regex": r"answer is (\d+)", "name": "answer", "column": "record"},
        *(completion(text, row) for text, row in zip(answers, rows, strict=True)),
    )
    assert found == {"rows": 3, "share": 0.75, "distinct": 3, "match_share": pytest.approx(2 / 3)}


def test_without_a_reference_every_completion_should_have_the_field():
    found = metrics({"json_path": "$.died"}, completion('{"died": 1}'), completion('{"died": 2}'), completion("{}"))
    third = pytest.approx(1 / 3)
    assert found == {"rows": 3, "null_share": third, "missing_share": third, "distinct": 2, "unreadable_share": 0.0}


def test_a_reference_may_be_json_text_and_numbers_are_compared_as_json():
    found = metrics(
        {"json_path": "$.n", "column": "record"}, completion('{"n": 1}', '{"n": 1}'), completion("[]", "no")
    )
    assert (found["rows"], found["match_share"]) == (1, 1.0)


def test_where_no_row_has_a_value_no_share_is_made_up():
    assert metrics({"json_path": "$.died", "column": "record"}, completion("{}", LIVING)) == {
        "rows": 0,
        "distinct": 0,
        "unreadable_share": 0.0,
    }


def test_a_pattern_is_searched_in_every_completion():
    assert metrics({"regex": "I cannot"}, completion("Sorry, I cannot."), completion("1863")) == {
        "rows": 2,
        "distinct": 1,
        "share": 0.5,
    }


def test_a_pattern_that_runs_away_costs_its_completion_and_no_more():
    found = metrics({"regex": "(?:a|aa)+$", "name": "bad"}, completion("a" * 60 + "!"), completion("aaa"))
    assert found == {"rows": 1, "distinct": 1, "share": 1.0}


def test_nothing_watched_costs_nothing():
    assert Watch([]).metrics([completion("{}")]) == {}
