"""From pydantic's errors to ours: the field as the client wrote it, what it must be, and what to do about it."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from core.errors import InvalidRequest, Problem

Path = Sequence[str | int]
Model = TypeVar("Model", bound=BaseModel)

_MAX_SHOWN = 60
_VERBS = {"be": "is", "have": "has", "match": "matches"}
_MUST = re.compile(r"\w+ should (?P<verb>\w+) (?P<what>.*)", re.DOTALL)
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
        document = request.app.openapi()
        operations = document["paths"].get(getattr(request.scope.get("route"), "path", None), {})
        body = operations.get(request.method.lower(), {}).get("requestBody", {})
        schema = body.get("content", {}).get("application/json", {}).get("schema")
        return None if schema is None else cls(schema, document["components"]["schemas"])

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
    contract = Contract.of_operation(request)
    return InvalidRequest.of(list(_problems(error.errors(), error.body, contract)))


def parse(model: type[Model], data: object) -> Model:
    """`data` as `model`; raises InvalidRequest with every problem, as FastAPI's own bodies do."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise InvalidRequest.of(problems_of(error, data, model)) from None


def problems_of(error: ValidationError, data: object, model: type[BaseModel]) -> list[Problem]:
    """What is wrong with `data`, which `model` refused."""
    errors = [{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]
    return list(_problems(errors, data, Contract.of_model(model)))


def field_path(parts: Path) -> str:
    """`("method", "grpo", "rewards", 0, "weight")` as `method.grpo.rewards[0].weight`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".") or "body"


def _problems(errors: Sequence[Mapping[str, Any]], body: object, contract: Contract | None) -> Iterator[Problem]:
    for error in errors:
        place, *loc = error["loc"]
        if place != "body":
            yield _problem(error, loc, [])
            continue
        path = _written_path(loc, body, is_missing=error["type"] == "missing")
        yield _problem(error, path, contract.names_at(path[:-1]) if contract and path else [])


def _written_path(loc: Path, body: object, *, is_missing: bool) -> Path:
    """`loc` without the parts that pydantic adds: the names of union branches and validators."""
    path: list[str | int] = []
    for number, part in enumerate(loc, 1):
        if isinstance(body, dict) and part in body:
            body = body[part]
        elif isinstance(body, list) and isinstance(part, int) and part < len(body):
            body = body[part]
        elif not (is_missing and number == len(loc)):
            continue
        path.append(part)
    return path


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
    if kind == "value_error":
        return Problem(field, str(context["error"]), fix=f"Change `{field}`.")
    code = "invalid_type" if _TYPE_ERRORS.fullmatch(kind) else "invalid_value"
    if rule := _MUST.fullmatch(error["msg"]):
        verb, what = rule["verb"], rule["what"]
        got = _shown(error.get("input"))
        return Problem(field, f"must {verb} {what}{got}", code, f"Send a value that {_VERBS.get(verb, verb)} {what}.")
    if "fix" in context:  # our own PydanticCustomError(code, message, {"fix": ...})
        return Problem(field, error["msg"], kind, context["fix"])
    return Problem(field, error["msg"], code, f"Change `{field}`.")


def unknown_field(path: Path, names: Sequence[str]) -> Problem:
    """A field that is not there, with the nearest of `names`, or all of them."""
    near = difflib.get_close_matches(str(path[-1]), names, n=1, cutoff=0.6)
    if near:
        fix = f"Did you mean `{near[0]}`?"
    elif names:
        fix = f"Remove it; the fields here are {', '.join(names)}."
    else:
        fix = "Remove it."
    return Problem(field_path(path), "is not a field of this object", "unknown_field", fix)


def _shown(value: object) -> str:
    """What was sent, where it is short enough to help."""
    if isinstance(value, bool | int | float | str) and len(text := repr(value)) <= _MAX_SHOWN:
        return f"; it is {text}"
    return ""
