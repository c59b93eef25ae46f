"""From pydantic's errors to ours: where, what, and what to do."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from app.validation import field_path, problems_of
from core.builtin_rewards.outside import Http


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Term(Strict):
    weight: float = Field(1.0, ge=0)


class Fast(Strict):
    learning_rate: float = Field(gt=0, allow_inf_nan=False)
    terms: list[Term] = []


class FastMethod(Strict):
    type: Literal["fast"]
    fast: Fast


class SlowMethod(Strict):
    type: Literal["slow"]
    patience: int | Literal["auto"] = "auto"


class Body(Strict):
    method: Annotated[FastMethod | SlowMethod, Field(discriminator="type")]
    suffix: str | None = Field(None, max_length=4)


def refused(body: Any) -> dict[str, tuple[str, str | None]]:
    """Field to code and fix."""
    with pytest.raises(ValidationError) as caught:
        Body.model_validate(body)
    return {problem.field: (problem.code, problem.fix) for problem in problems_of(caught.value, body, Body)}


def fast(**changes: Any) -> dict[str, Any]:
    return {"method": {"type": "fast", "fast": {"learning_rate": 0.1, **changes}}}


def test_path_is_the_clients_and_names_no_branch_of_a_union():
    problems = refused(fast(learning_rate=0, terms=[{}, {"weight": -1}]))
    assert set(problems) == {"method.fast.learning_rate", "method.fast.terms[1].weight"}


def test_missing_field_is_named_where_it_should_be():
    assert refused({"method": {"type": "fast", "fast": {}}}) == {
        "method.fast.learning_rate": ("missing_field", "Add `method.fast.learning_rate` to the request.")
    }
    assert set(refused({"method": {"type": "fast"}})) == {"method.fast"}


@pytest.mark.parametrize(
    ("body", "field", "fix"),
    [
        (fast(learnin_rate=1), "method.fast.learnin_rate", "Did you mean `learning_rate`?"),
        (fast(terms=[{"wieght": 1}]), "method.fast.terms[0].wieght", "Did you mean `weight`?"),
        ({**fast(), "sufix": "a"}, "sufix", "Did you mean `suffix`?"),
        (fast(terms=[{"xyz": 1}]), "method.fast.terms[0].xyz", "Remove it; what is known here: weight."),
    ],
)
def test_unknown_field_gets_the_nearest_name_of_its_own_object(body: Any, field: str, fix: str):
    assert refused(body) == {field: ("unknown_field", fix)}


@pytest.mark.parametrize(
    ("body", "field", "code", "fix"),
    [
        (fast(learning_rate="x"), "method.fast.learning_rate", "invalid_type", "Send a value that is a valid number."),
        (fast(learning_rate=0), "method.fast.learning_rate", "invalid_value", "Send a value that is greater than 0."),
        (fast(terms={}), "method.fast.terms", "invalid_type", "Send a value that is a list."),
        (fast(terms=[1]), "method.fast.terms[0]", "invalid_type", "Send a value that is an object."),
        (
            {**fast(), "suffix": "abcde"},
            "suffix",
            "invalid_value",
            "Send a value that has at most 4 characters.",
        ),
        ({"method": {"type": "fats"}}, "method.type", "invalid_value", "Send one of 'fast', 'slow'."),
        ({"method": {}}, "method.type", "missing_field", "Add `method.type` to the request."),
        ([], "body", "invalid_type", "Send a value that is an object."),
    ],
)
def test_wrong_value_says_what_would_be_right(body: Any, field: str, code: str, fix: str):
    assert refused(body) == {field: (code, fix)}


def test_what_was_sent_is_shown_when_it_is_short():
    with pytest.raises(ValidationError) as caught:
        Body.model_validate(fast(learning_rate=-1))
    assert problems_of(caught.value, fast(learning_rate=-1), Body)[0].message == "must be greater than 0; it is -1"


def test_our_own_error_keeps_its_code_and_fix():
    custom = PydanticCustomError("moved_field", "has moved", {"fix": "Use `other`."})
    error = ValidationError.from_exception_data("Body", [{"type": custom, "loc": ("suffix",), "input": "a"}])
    problem = problems_of(error, {"suffix": "a"}, Body)[0]
    assert (problem.field, problem.code, problem.message) == ("suffix", "moved_field", "has moved")
    assert problem.fix == "Use `other`."


def test_path_is_written_as_the_client_would():
    assert field_path(("method", "grpo", "rewards", 0, "weight")) == "method.grpo.rewards[0].weight"
    assert field_path(()) == "body"


SECRET = "whsec_of-nobody-else"


@pytest.mark.parametrize(
    "written",
    [
        {"secret": SECRET},
        {"secret": SECRET * 20},
        {"secret": 1234567},
        {"headers": {"Authorization": f"Bearer {SECRET}\n"}},
        {"headers": {"Authorization": 1234567}},
        {"headers": {f"Authorization: {SECRET}": ""}},
        {"headers": {SECRET + "\n": 7}},
        {"headers": SECRET},
    ],
)
def test_what_may_be_a_credential_is_never_shown(written: Any) -> None:
    body = {"builtin": "http", "url": "https://grader.example.org/", **written}
    with pytest.raises(ValidationError) as caught:
        Http.model_validate(body)
    (problem,) = problems_of(caught.value, body, Http)
    assert problem.field == next(iter(written))
    for text in (problem.field, problem.message, problem.fix or ""):
        assert "1234567" not in text
        assert SECRET not in text
