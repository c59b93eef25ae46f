"""What a reward's source says about itself: its entry point, the form it is called in, the columns it reads.

Everything is read from the syntax tree; the source is never executed here. Forms are told apart by parameter names
(`FORMS`); every parameter that a form does not provide names a column of the data set. `docs/rewards.md` shows one
example of each form.
"""

import ast
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from core.errors import InvalidReward, Problem
from core.reward_imports import catches, import_problems

PREFERRED_NAMES = ("reward", "grade", "reward_func", "reward_fn", "compute_score", "score_answer", "score")
"""Entry points by convention, the first that exists wins."""
GROUND_TRUTH = ("ground_truth", "reward_model", "reward_model.ground_truth")
"""Columns that a `ground_truth` is taken from: verl keeps it inside `reward_model`; CSV and flattened files in a
column of that path."""

_KEY_ERRORS = frozenset({"KeyError", "LookupError", "Exception"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class RewardForm(StrEnum):
    TRL = "trl"
    OPENAI = "openai"
    PER_SAMPLE = "per_sample"
    PREDIBASE = "predibase"
    VERL = "verl"
    OSMOSIS = "osmosis"
    REWARD_KIT = "reward_kit"
    """Also eval-protocol's."""
    VERIFIERS = "verifiers"
    REASONING_GYM = "reasoning_gym"


@dataclass(frozen=True, slots=True)
class FormRule:
    """How to know a form, and what its functions are given beside columns."""

    signature: str
    """As people write it."""
    needs: tuple[tuple[str, ...], ...]
    """The parameters that make the form; of each group one."""
    offers: tuple[str, ...] = ()
    """Parameters that the service fills in beside those."""
    row: str | None = None
    """The parameter that is the whole row; what is read from it by key are columns."""
    row_offers: tuple[str, ...] = ()
    """Keys of `row` that every row has."""


FORMS: Mapping[RewardForm, FormRule] = {
    RewardForm.TRL: FormRule(
        "f(completions, **columns)",
        (("completions",),),
        ("prompts", "completion_ids", "trainer_state", "log_extra", "log_metric"),
    ),
    RewardForm.OPENAI: FormRule("grade(sample, item)", (("sample",), ("item",)), row="item"),
    RewardForm.VERL: FormRule(
        "compute_score(data_source, solution_str, ground_truth, extra_info=None)",
        (("solution_str",), ("data_source",)),
        ("extra_info", "prompt"),
    ),
    RewardForm.OSMOSIS: FormRule(
        "f(solution_str, ground_truth, extra_info=None)", (("solution_str",),), ("extra_info", "prompt")
    ),
    RewardForm.PREDIBASE: FormRule(
        "f(prompt, completion, example)",
        (("completion",), ("example",)),
        ("prompt",),
        row="example",
        row_offers=("prompt",),
    ),
    RewardForm.VERIFIERS: FormRule(
        "f(prompt, completion, answer, state)", (("completion",), ("state",)), ("prompt", "info", "task")
    ),
    RewardForm.PER_SAMPLE: FormRule(
        "reward(completion, column, ...)", (("completion", "response", "solution_str"),), ("prompt",)
    ),
    RewardForm.REWARD_KIT: FormRule(
        "f(messages, ground_truth=None, **columns)", (("messages",),), ("original_messages", "prompt")
    ),
    RewardForm.REASONING_GYM: FormRule(
        "score_answer(answer, entry)", (("answer",), ("entry",)), row="entry", row_offers=("question",)
    ),
}
"""In the order in which they are tried: of a function that several would take, the first is meant."""
_DATA_PARAMETERS = frozenset({"data_source"})
"""Parameters that make a form, and yet are columns."""


@dataclass(frozen=True, slots=True)
class RewardEntry:
    """How to call a reward. Plain values only: it is stored as JSON with the version."""

    name: str
    form: RewardForm
    provided: tuple[str, ...]
    """Parameters that the service fills in; in the per-sample form the first is the completion."""
    columns: tuple[str, ...]
    """Data set columns that the reward cannot do without."""
    optional_columns: tuple[str, ...]
    takes_any: bool
    """Whether it takes every column (`**kwargs`, or a parameter that is the whole row)."""
    is_async: bool
    takes_kwargs: bool = False


def decode_source(data: bytes) -> str:
    """The text of an uploaded `.py` file; raises `InvalidReward`."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _invalid(f"line {line} is not UTF-8 (byte {error.start})", "Save the file as UTF-8.") from None


def analyse(source: str, *, entry_point: str | None = None, form: RewardForm | None = None) -> RewardEntry:
    """Find the entry point and how to call it; raises `InvalidReward` with all that is wrong.

    A `form` that is given is not guessed from the parameter names.
    """
    tree = _parse(source)
    problems = list(import_problems(tree))
    found = _choose(tree, entry_point, form)
    if isinstance(found, Problem):
        raise InvalidReward.of([*problems, found], subject="The reward")
    if problems:
        raise InvalidReward.of(problems, subject="The reward")
    return found


def bind(entry: RewardEntry, columns: Sequence[str], *, field: str = "rewards") -> list[Problem]:
    """The columns that the reward needs and a data set with `columns` lacks."""
    return [
        _missing_column(entry, name, columns, field)
        for name in entry.columns
        if not any(stand_in in columns for stand_in in sources(entry.form, name))
    ]


def sources(form: RewardForm, column: str) -> tuple[str, ...]:
    """The columns that a parameter's value may be taken from, the best first."""
    knows_verl = form in {RewardForm.VERL, RewardForm.OSMOSIS, RewardForm.REWARD_KIT}
    return GROUND_TRUTH if column == GROUND_TRUTH[0] and knows_verl else (column,)


def _missing_column(entry: RewardEntry, name: str, columns: Sequence[str], field: str) -> Problem:
    near = difflib.get_close_matches(name, columns, n=1)
    have = ", ".join(f"`{column}`" for column in columns[:12]) or "no columns beside the prompt"
    if near:
        fix = f"Did you mean `{near[0]}`? Rename the column or the parameter."
    else:
        fix = f"Add the column to every row, or give the parameter a default; the rows have {have}."
    return Problem(field, f"`{entry.name}` reads the column `{name}`, which the rows lack", "missing_column", fix)


def _invalid(message: str, fix: str, code: str = "invalid_source") -> InvalidReward:
    return InvalidReward.of([Problem("source", message, code, fix)], subject="The reward")


def _parse(source: str) -> ast.Module:
    if "\0" in source:
        line = source.count("\n", 0, source.index("\0")) + 1
        raise _invalid(f"line {line} contains a NUL character", "Send the text of a Python file.")
    try:
        tree = ast.parse(source)
        compile(tree, "reward.py", "exec", dont_inherit=True)  # finds what the grammar allows: a stray `return`
    except SyntaxError as error:
        lines = source.splitlines()
        text = lines[error.lineno - 1].strip()[:120] if error.lineno and error.lineno <= len(lines) else ""
        message = f"line {error.lineno}, column {error.offset}: {error.msg}: {text}"
        raise _invalid(message, "Correct the syntax.", "syntax_error") from None
    except (ValueError, RecursionError, MemoryError) as error:  # lone surrogates; nesting beyond the parser
        raise _invalid(f"cannot be parsed: {error or 'nested too deeply'}", "Send a plain Python file.") from None
    return tree


def _choose(tree: ast.Module, entry_point: str | None, form: RewardForm | None) -> RewardEntry | Problem:
    functions = {node.name: node for node in tree.body if isinstance(node, _Function)}
    if entry_point is not None:
        if entry_point not in functions:
            return _no_entry(f"there is no top-level function `{entry_point}`", functions)
        return _entry(functions[entry_point], form)
    public = {name: _entry(node, form) for name, node in functions.items() if not name.startswith("_")}
    accepted = {name: entry for name, entry in public.items() if isinstance(entry, RewardEntry)}
    for name in PREFERRED_NAMES:
        if name in accepted:
            return accepted[name]
    if len(accepted) == 1:
        return next(iter(accepted.values()))
    if accepted:
        names = ", ".join(f"`{name}`" for name in accepted)
        fix = "Name the one to call in `entry_point`."
        return Problem("entry_point", f"several functions could be the reward: {names}", "ambiguous_entry_point", fix)
    meant = [name for name in PREFERRED_NAMES if name in public] or list(public)
    if len(meant) == 1:
        return public[meant[0]]
    return _no_entry("there is no function that can be called as a reward", functions)


def _no_entry(message: str, functions: dict[str, _Function]) -> Problem:
    names = ", ".join(f"`{name}`" for name in list(functions)[:8]) or "none"
    fix = f"Define a top-level function in one of the forms {_all_forms()}."
    return Problem("entry_point", f"{message}; its top-level functions are: {names}", "no_entry_point", fix)


def _all_forms() -> str:
    written = [f"`{rule.signature}`" for rule in FORMS.values()]
    return f"{', '.join(written[:-1])} or {written[-1]}"


def _entry(node: _Function, wanted: RewardForm | None) -> RewardEntry | Problem:
    arguments = node.args
    named = [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]
    form = wanted or _form(named)
    if arguments.posonlyargs:
        return _uncallable(node, "takes arguments by position only")
    if form is None:
        return _uncallable(node, "is in none of the forms")
    if (refusal := _refusal(form, named, arguments)) is not None:
        return _uncallable(node, refusal)
    provided = _provided(form, named)
    columns, optional = _columns(node, form, [name for name in named if name not in provided])
    return RewardEntry(
        name=node.name,
        form=form,
        provided=provided,
        columns=tuple(dict.fromkeys(columns)),
        optional_columns=tuple(dict.fromkeys(optional)),
        takes_any=arguments.kwarg is not None or FORMS[form].row is not None,
        is_async=isinstance(node, ast.AsyncFunctionDef),
        takes_kwargs=arguments.kwarg is not None,
    )


def _columns(node: _Function, form: RewardForm, named: Sequence[str]) -> tuple[list[str], list[str]]:
    """Columns that the function needs, and those it can do without; `named`: parameters that the form lacks."""
    rule = FORMS[form]
    if rule.row is not None:
        needed, optional = _row_columns(node, rule.row)
        return [key for key in needed if key not in rule.row_offers], optional
    defaults = _with_default(node.args)
    return [name for name in named if name not in defaults], [name for name in named if name in defaults]


def _uncallable(node: _Function, why: str) -> Problem:
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    written = f"{node.name}({', '.join(argument.arg for argument in arguments)})"
    fix = f"Parameters by name: {_all_forms()}."
    return Problem("entry_point", f"`{written[:120]}` {why}", "no_entry_point", fix)


def _with_default(arguments: ast.arguments) -> set[str]:
    named = arguments.args[len(arguments.args) - len(arguments.defaults) :]
    only_named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {argument.arg for argument in named} | {argument.arg for argument, value in only_named if value is not None}


def _form(named: Sequence[str]) -> RewardForm | None:
    if "parser" in named and "completion" in named:
        return RewardForm.VERIFIERS
    return next((form for form, rule in FORMS.items() if not _lacking(rule, named)), None)


def _lacking(rule: FormRule, named: Sequence[str]) -> list[str]:
    return [group[0] for group in rule.needs if not any(name in named for name in group)]


def _refusal(form: RewardForm, named: Sequence[str], arguments: ast.arguments) -> str | None:
    """Why a function cannot be called in the form. One with `**kwargs` takes what it does not name."""
    lacking = _lacking(FORMS[form], named) if arguments.kwarg is None else []
    if form is RewardForm.VERIFIERS:
        if "parser" in named:
            return "takes a `parser`, an object of verifiers that is not there: parse the text in the function itself"
        lacking = [name for name in lacking if name != "state"]
    if lacking:
        return f"cannot be called as `{form}`: it does not take {_listed(lacking)}"
    provided = _provided(form, named)
    more = [name for name in named if name not in provided and name not in _with_default(arguments)]
    return f"needs more than {_listed(provided)}" if FORMS[form].row is not None and more else None


def _listed(names: Sequence[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)


def _provided(form: RewardForm, named: Sequence[str]) -> tuple[str, ...]:
    """The completion first; of parameters that could be it, the later ones name columns."""
    rule = FORMS[form]
    made_by = [next((name for name in group if name in named), group[0]) for group in rule.needs]
    offered = [name for name in (*made_by, *rule.offers) if name in named or name == made_by[0]]
    return tuple(name for name in offered if name not in _DATA_PARAMETERS)


def _row_columns(node: _Function, row: str) -> tuple[list[str], list[str]]:
    """Keys read as `row["key"]`, and those the code asks for first: `"key" in row`, `row.get("key")`."""
    read, asked, catching = [], [], False
    for part in ast.walk(node):
        match part:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key)), ctx=ast.Load()):
                read += [key] if name == row else []
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="get"), args=[ast.Constant(value=str(key)), *_]
            ):
                asked += [key] if name == row else []
            case ast.Compare(left=ast.Constant(value=str(key)), comparators=[ast.Name(id=name)]):
                asked += [key] if name == row else []
            case ast.ExceptHandler(type=kind):
                catching = catching or catches(kind, _KEY_ERRORS)
    if catching:
        return [], [*read, *asked]
    return [key for key in read if key not in asked], asked
