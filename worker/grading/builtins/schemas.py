"""JSON that a schema accepts."""

from collections.abc import Iterator
from typing import Any

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from core.builtin_rewards.structure import JsonSchema
from worker.grading.builtins.outcomes import PATTERN_TIMEOUT_S, Score, Scorer, UnfitDataError, passed
from worker.grading.builtins.structure import NotJsonError, read_json
from worker.grading.grades import Rollout


def json_schema(parameters: JsonSchema) -> Scorer:
    try:
        Draft202012Validator.check_schema(parameters.json_schema)
    except SchemaError as error:
        raise UnfitDataError(f"the schema is not valid at {error.json_path}: {error.message[:200]}") from None
    validator = _Validator(parameters.json_schema, registry=Registry())  # an empty one fetches nothing

    def score(rollout: Rollout) -> Score:
        try:
            return passed(validator.is_valid(read_json(rollout.completion, parameters)))
        except (NotJsonError, RecursionError):
            return passed(False)
        except Unresolvable as error:
            raise UnfitDataError(f"the schema refers to {error.ref!r}, which it does not hold") from None
        except TimeoutError:
            raise UnfitDataError(f"a pattern of the schema needs more than {PATTERN_TIMEOUT_S:g} s") from None

    return score


def _pattern(_: Validator, pattern: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    """As jsonschema's own, with a time limit: `re` has none, and some patterns take for ever on some texts."""
    if isinstance(instance, str) and not regex.search(pattern, instance, timeout=PATTERN_TIMEOUT_S):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


_Validator = extend(Draft202012Validator, {"pattern": _pattern})  # type: ignore[no-untyped-call] # its stub is bare
