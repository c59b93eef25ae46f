"""All built-in rewards by name, and what is wrong with parameters that somebody wrote.

What they compute stands in `worker.grading.builtins`, one function of the same name each. Scores are from 0 to 1, but
for the penalties (`overlong`, `repetition`, and `json_fields` with a null penalty), which go below 0. A row whose
reference is null has no answer: the reward does not apply to it.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args

from pydantic import Field, TypeAdapter

from core.builtin_rewards.answers import Contains, ExactMatch, Math, MultipleChoice, Numeric, Regex
from core.builtin_rewards.comparison import FormulaReward, StringCheck, TextSimilarity
from core.builtin_rewards.outside import CodeTests, Http
from core.builtin_rewards.parameters import Builtin
from core.builtin_rewards.shape import Length, Overlong, Repetition
from core.builtin_rewards.structure import FormatTags, JsonFields, JsonSchema, JsonValid
from core.errors import Problem

_Any = (
    ExactMatch
    | Numeric
    | Math
    | Regex
    | Contains
    | MultipleChoice
    | JsonValid
    | JsonSchema
    | JsonFields
    | FormatTags
    | Length
    | Overlong
    | Repetition
    | TextSimilarity
    | StringCheck
    | FormulaReward
    | CodeTests
    | Http
)
AnyBuiltin = Annotated[_Any, Field(discriminator="builtin")]

BUILTINS: Mapping[str, type[Builtin]] = {
    get_args(model.model_fields["builtin"].annotation)[0]: model for model in get_args(_Any)
}
_PARSER: TypeAdapter[AnyBuiltin] = TypeAdapter(AnyBuiltin)


def parse_builtin(parameters: Mapping[str, Any]) -> AnyBuiltin:
    """Raises pydantic's `ValidationError`."""
    return _PARSER.validate_python(parameters)


def names_of(name: str) -> list[str]:
    """The parameters of a built-in, as they are written."""
    return [field.alias or key for key, field in BUILTINS[name].model_fields.items() if key != "builtin"]


def unknown_builtin(name: object, *, field: str) -> Problem:
    near = difflib.get_close_matches(str(name)[:64], BUILTINS, n=1)
    fix = f"Did you mean `{near[0]}`?" if near else f"There are {', '.join(BUILTINS)}."
    return Problem(field, f"there is no built-in reward {str(name)[:64]!r}", "unknown_builtin", fix)


def bind_builtin(builtin: Builtin, columns: Sequence[str], *, name: str, field: str) -> list[Problem]:
    """The columns that the reward reads and a data set with `columns` lacks."""
    return [_missing(name, column, columns, field) for column in builtin.columns if column not in columns]


def _missing(name: str, column: str, columns: Sequence[str], field: str) -> Problem:
    near = difflib.get_close_matches(column, columns, n=1)
    have = ", ".join(f"`{one}`" for one in columns[:12]) or "no columns beside the prompt"
    fix = f"Did you mean `{near[0]}`?" if near else f"Add the column to every row; the rows have {have}."
    return Problem(field, f"`{name}` reads the column `{column}`, which the rows lack", "missing_column", fix)
