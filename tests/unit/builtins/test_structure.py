import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builtins.grading import grade, rollout, score
from worker.grading.builtins import load
from worker.grading.builtins.registry import UnknownBuiltinError
from worker.grading.builtins.structure import label_of
from worker.grading.grades import GradeOutcome
from worker.grading.logged import bounded


@pytest.mark.parametrize(
    ("completion", "parameters", "wanted"),
    [
        ('{"a": 1}', {}, 1.0),
        ("1", {}, 1.0),
        ("1", {"kind": "object"}, 0.0),
        ("[1]", {"kind": "array"}, 1.0),
        ("NaN", {}, 0.0),
        ("[" * 100_000, {}, 0.0),
        ("9" * 5000, {}, 0.0),  # more digits than Python reads
        ("Here: {}", {}, 0.0),
        ("Here:\n```json\n{}\n```\n", {}, 0.0),
        ("Here:\n```json\n{}\n```\n", {"allow_fence": True}, 1.0),
        ("<think>x</think>{}", {"after": "</think>"}, 1.0),
    ],
)
def test_json_valid(completion: str, parameters: dict[str, Any], wanted: float) -> None:
    assert score("json_valid", rollout(completion), **parameters) == wanted


SCHEMA = {"required": ["n"], "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"minimum": 3}}}


@pytest.mark.parametrize(("completion", "wanted"), [('{"n": 3}', 1.0), ('{"n": 2}', 0.0), ("{}", 0.0), ("oops", 0.0)])
def test_json_schema(completion: str, wanted: float) -> None:
    assert score("json_schema", rollout(completion), schema=SCHEMA) == wanted


def test_a_schema_that_points_elsewhere_is_refused_without_a_request() -> None:
    result = grade("json_schema", rollout("{}"), schema={"$ref": "http://127.0.0.1:9/schema.json"})
    assert result.outcome is GradeOutcome.USER_ERROR
    assert result.message == "the schema refers to 'http://127.0.0.1:9/schema.json', which it does not hold"


def test_a_schema_that_is_none_is_refused_when_loading() -> None:
    with pytest.raises(UnknownBuiltinError, match=r"the schema is not valid at \$\.type"):
        load("json_schema", {"schema": {"type": "obj"}})


def test_a_schemas_pattern_that_runs_away_is_stopped() -> None:
    completion = json.dumps("a" * 60 + "b")
    result = grade("json_schema", rollout(completion), schema={"pattern": "(a|aa)+$"})
    assert result.outcome is GradeOutcome.USER_ERROR


RECORD = {"name": "Ada", "born": 1815, "died": None}


@pytest.mark.parametrize(
    ("written", "parameters", "wanted"),
    [
        (RECORD, {}, 1.0),
        ({"name": " Ada ", "born": 1815}, {}, 1.0),  # absent is null
        ({"name": "Ada", "born": "1815"}, {}, 2 / 3),
        ({"name": "Ada", "born": 1815, "died": 1852}, {}, 2 / 3),
        ({"name": "Ada", "born": None}, {"weights": {"name": 3, "born": 1}}, 0.75),
        ({"name": "Ada", "born": None}, {"weights": {"name": 3, "born": 1}, "null_penalty": 1}, 0.5),
        ({"name": "Eve", "born": 1815}, {"null_penalty": 1}, 2 / 3),  # wrong is not null
        ({"name": "ADA", "born": 1815.4}, {"ignore_case": True, "tolerance": 0.5}, 1.0),
        ([], {}, 0.0),
    ],
)
def test_json_fields(written: Any, parameters: dict[str, Any], wanted: float) -> None:
    one = rollout(json.dumps(written), record=RECORD)
    assert score("json_fields", one, column="record", **parameters) == pytest.approx(wanted)


def test_lists_of_a_field_are_compared_in_order_unless_it_is_not_to_matter() -> None:
    one = rollout('{"tags": ["b", "a", "b"]}', record='{"tags": ["a", "b", "b"]}')
    assert score("json_fields", one, column="record") == 0.0
    assert score("json_fields", one, column="record", ignore_order=True) == 1.0


def test_each_field_reports_match_and_null_as_metrics() -> None:
    result = grade("json_fields", rollout('{"name": "Eve"}', record=RECORD), column="record")
    assert dict(result.metrics) == {
        "json_fields/parsed": 1.0,
        "json_fields/name/match": 0.0,
        "json_fields/name/null": 0.0,
        "json_fields/born/match": 0.0,
        "json_fields/born/null": 1.0,
        "json_fields/died/match": 1.0,  # null where the reference is null: no null rate
    }


def test_garbage_is_never_better_than_nulls() -> None:
    parameters = {"column": "record", "null_penalty": 1.0}
    garbage = score("json_fields", rollout("I cannot", record=RECORD), **parameters)
    nulls = score("json_fields", rollout("{}", record=RECORD), **parameters)
    assert garbage is not None
    assert nulls is not None
    assert garbage < nulls < 0


def test_a_null_record_has_no_answer_and_a_bad_one_is_the_datas_fault() -> None:
    assert score("json_fields", rollout("{}", record=None), column="record") is None
    for record in ("{", [1], 7):
        result = grade("json_fields", rollout("{}", record=record), column="record")
        assert result.outcome is GradeOutcome.USER_ERROR


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1, max_size=5), JSON, min_size=1, max_size=4))
def test_a_record_matches_itself_whatever_is_in_it(record: dict[str, Any]) -> None:
    for parameters in ({}, {"ignore_order": True, "ignore_case": True, "tolerance": 0.1}):
        assert score("json_fields", rollout(json.dumps(record), record=record), column="record", **parameters) == 1.0


@pytest.mark.parametrize(
    ("completion", "parameters", "wanted"),
    [
        ("<think>x</think><answer>y</answer>", {}, 1.0),
        ("\n<think>\nx\n</think>\n\n<answer>y</answer>\n", {}, 1.0),
        ("<think>x</think> so <answer>y</answer>", {}, 0.0),
        ("<think> </think><answer>y</answer>", {}, 0.0),
        ("<answer>y</answer><think>x</think>", {}, 0.0),
        ("<think>x</think><answer>y</answer><answer>z</answer>", {}, 0.0),
        ("<think>x<answer></think><answer>y</answer>", {}, 0.0),
        ("x</think><answer>y</answer>", {}, 0.0),
        ("x</think><answer>y</answer>", {"opened": True}, 1.0),
        ("<think>x</think><answer>y</answer>", {"opened": True}, 0.0),
        ("<a>1</a><b>2</b><c>3</c>", {"tags": ["a", "b", "c"]}, 1.0),
    ],
)
def test_format_tags(completion: str, parameters: dict[str, Any], wanted: float) -> None:
    assert score("format_tags", rollout(completion), **parameters) == wanted


def test_fields_keep_metrics_of_their_own_however_long_or_strange_their_names_are() -> None:
    fields = ["a" * 60 + "1", "a" * 60 + "2", "b\0", "b\\0", "c/match", "c", "\ud800", "d" * 46]
    names = [label_of(field) for field in fields]
    assert len(set(names)) == len(fields)
    assert (names[-3], names[-1]) == ("c", "d" * 46)
    completion = json.dumps(dict.fromkeys(fields, 1))
    result = grade("json_fields", rollout(completion, gold=dict.fromkeys(fields, 1)), column="gold")
    assert set(bounded(result).metrics) == {
        "json_fields/parsed",
        *(f"json_fields/{name}/{what}" for name in names for what in ("match", "null")),
    }
