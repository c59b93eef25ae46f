"""From pydantic's errors to ours: the field as the client wrote it, what it must be, and what to do about it."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from core.builtin_rewards.outside import CREDENTIAL_FIELDS
from core.errors import InvalidRequest, Problem

Path = Sequence[str | int]
Model = TypeVar("Model", bound=BaseModel)

_MAX_SHOWN = 60
_VERBS = {"be": "is", "have": "has", "match": "matches"}
_MUST = re.compile(r"\w+ should (?P<verb>\w+) (?P<what>.*)", re.DOTALL)
_WORDS = {
    "model_attributes_type": "Input should be an object",
    "model_type": "Input should be an object",
    "dict_type": "Input should be an object",
    "list_type": "Input should be a list",
    "tuple_type": "Input should be a list",
    "string_type": "Input should be text",
}
_TYPE_ERRORS = re.compile(r".*_(type|parsing)|int_from_float|is_instance_of")


@dataclass(frozen=True, slots=True)
class Contract:
    """The JSON Schema of a body: the one place that knows which names are valid where."""

    schema: Mapping[str, Any]
    definitions: Mapping[str, Any]
    """What `#/.../Name` means, by name."""

    @classmethod
    def of_model(cls, model: type[BaseModel]) -> "Contract":
        schema = model.model_json_schema()
        return cls(schema, schema.get("$defs", {}))

    @classmethod
    def of_operation(cls, request: Request) -> "Contract | None":
        """The published schema of the JSON body that this request should have."""
        content = _operation(request).get("requestBody", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema")
        return None if schema is None else cls(schema, request.app.openapi()["components"]["schemas"])

    def names_at(self, path: Path) -> list[str]:
        """Every field that an object at `path` may have, in any of its forms."""
        forms = list(self._forms(self.schema))
        for part in path:
            forms = [form for outer in forms for inner in _inside(outer, part) for form in self._forms(inner)]
        return list(dict.fromkeys(name for form in forms for name in form.get("properties", ())))

    def _forms(self, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        if "$ref" in schema:
            yield from self._forms(self.definitions[schema["$ref"].rpartition("/")[2]])
            return
        yield schema
        for key in ("anyOf", "oneOf", "allOf"):
            for form in schema.get(key, ()):
                yield from self._forms(form)


def invalid_request(request: Request, error: RequestValidationError) -> InvalidRequest:
    """One error for everything that FastAPI found wrong with the path, the query, the headers and the body."""
    return InvalidRequest.of(list(_problems(error.errors(), error.body, partial(Contract.of_operation, request))))


def parse(model: type[Model], data: object) -> Model:
    """`data` as `model`; raises InvalidRequest with every problem, as FastAPI's own bodies do."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise InvalidRequest.of(problems_of(error, data, model)) from None


def problems_of(error: ValidationError, data: object, model: type[BaseModel]) -> list[Problem]:
    """What is wrong with `data`, which `model` refused."""
    errors = [{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]
    return list(_problems(errors, data, partial(Contract.of_model, model)))


def unknown_field(path: Path, names: Sequence[str]) -> Problem:
    """A field that is not there, with the nearest of `names`, or all of them."""
    near = difflib.get_close_matches(str(path[-1]), names, n=1, cutoff=0.6)
    if near:
        fix = f"Did you mean `{near[0]}`?"
    elif names:
        fix = f"Remove it; what is known here: {', '.join(names)}."
    else:
        fix = "Remove it."
    return Problem(field_path(path), "is not known here", "unknown_field", fix)


def field_path(parts: Path) -> str:
    """`("method", "grpo", "rewards", 0, "weight")` as `method.grpo.rewards[0].weight`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".") or "body"


def _operation(request: Request) -> Mapping[str, Any]:
    """What the published contract says of the operation that is being asked for."""
    methods = request.app.openapi()["paths"].get(getattr(request.scope.get("route"), "path_format", None), {})
    operation: Mapping[str, Any] = methods.get(request.method.lower(), {})
    return operation


def _problems(
    errors: Sequence[Mapping[str, Any]], body: object, contract: Callable[[], Contract | None]
) -> Iterator[Problem]:
    for error in errors:
        place, *loc = error["loc"]
        if place != "body":
            yield _problem(error, loc, [])
            continue
        path = _written_path(loc, body, is_missing=error["type"] == "missing")
        if secret := [place for place, part in enumerate(path) if part in CREDENTIAL_FIELDS]:
            yield _problem({**error, "input": None}, path[: secret[0] + 1], [])
            continue
        known = contract() if error["type"] == "extra_forbidden" else None
        yield _problem(error, path, known.names_at(path[:-1]) if known else [])


def _written_path(loc: Path, body: Any, *, is_missing: bool) -> Path:
    """`loc` without the parts that pydantic adds: the names of union branches and validators."""
    path: list[str | int] = []
    for number, part in enumerate(loc, 1):
        if _holds(body, part):
            body = body[part]
        elif not (is_missing and number == len(loc)):
            continue
        path.append(part)
    return path


def _holds(value: object, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value


def _inside(schema: Mapping[str, Any], part: str | int) -> Iterator[Mapping[str, Any]]:
    if isinstance(part, int):
        inner = schema.get("items")
    else:
        inner = schema.get("properties", {}).get(part, schema.get("additionalProperties"))
    if isinstance(inner, dict):
        yield inner


def _problem(error: Mapping[str, Any], path: Path, names: Sequence[str]) -> Problem:
    field, kind, context = field_path(path), error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown_field(path, names)
    if kind == "missing":
        return Problem(field, "is required", "missing_field", f"Add `{field}` to the request.")
    if kind == "union_tag_not_found":
        tag = field_path((*path, context["discriminator"].strip("'")))
        return Problem(tag, "is required", "missing_field", f"Add `{tag}` to the request.")
    if kind == "union_tag_invalid":
        tag, allowed = field_path((*path, context["discriminator"].strip("'"))), context["expected_tags"]
        return Problem(tag, f"must be one of {allowed}", "invalid_value", f"Send one of {allowed}.")
    if kind == "value_error":
        return Problem(field, str(context["error"]), fix=f"Change `{field}`.")
    if "fix" in context:  # our own PydanticCustomError(code, message, {"fix": ...})
        return Problem(field, error["msg"], kind, context["fix"])
    return _of_pydantic(field, error)


def _of_pydantic(field: str, error: Mapping[str, Any]) -> Problem:
    """Pydantic's sentences say what a value should be; ours say what it must be, and what was sent."""
    code = "invalid_type" if _TYPE_ERRORS.fullmatch(error["type"]) else "invalid_value"
    rule = _MUST.fullmatch(_WORDS.get(error["type"], error["msg"]))
    if rule is None:
        return Problem(field, error["msg"], code, f"Change `{field}`.")
    verb, what = rule["verb"], rule["what"].partition(", ")[0] if code == "invalid_type" else rule["what"]
    fix = f"Send a value that {_VERBS.get(verb, verb)} {what}."
    return Problem(field, f"must {verb} {what}{_shown(error.get('input'))}", code, fix)


def _shown(value: object) -> str:
    """What was sent, where it is short enough to help."""
    if isinstance(value, bool | int | float | str) and len(text := repr(value)) <= _MAX_SHOWN:
        return f"; it is {text}"
    return ""
