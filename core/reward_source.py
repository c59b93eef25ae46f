"""What a reward's source says about itself: its entry point, the form it is called in, the columns it reads.

Everything is read from the syntax tree; the source is never executed here. Forms are told apart by parameter names:

    completions            TRL's batch form: lists in, a list of numbers out
    sample and item        OpenAI's python grader: one completion, one row
    completion             one completion as text (also `response`, and verl's `solution_str`)

In the first and the last, `prompt(s)` and TRL's own arguments are provided; every other parameter names a column.
"""

import ast
import difflib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from core.errors import InvalidReward, Problem

REWARD_LIBRARIES = ("mpmath", "numpy", "regex", "scipy", "sympy")
"""What reward code may import beside the standard library: installed with the `worker` extra."""
PREFERRED_NAMES = ("reward", "grade", "reward_func", "reward_fn", "compute_score", "score")
"""Entry points by convention, the first that exists wins."""
COMPLETION_PARAMETERS = ("completion", "response", "solution_str")
TRL_PARAMETERS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")

_FORMS = "`f(completions, **columns)`, `grade(sample, item)` or `reward(completion, column, ...)`"
_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "Exception"})
_KEY_ERRORS = frozenset({"KeyError", "LookupError", "Exception"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class RewardForm(StrEnum):
    TRL = "trl"
    OPENAI = "openai"
    PER_SAMPLE = "per_sample"


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
    """Whether it takes every column (`**kwargs`, or OpenAI's `item`)."""
    is_async: bool


def decode_source(data: bytes) -> str:
    """The text of an uploaded `.py` file; raises `InvalidReward`."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _invalid(f"line {line} is not UTF-8 (byte {error.start})", "Save the file as UTF-8.") from None


def analyse(source: str, *, entry_point: str | None = None) -> RewardEntry:
    """Find the entry point and how to call it; raises `InvalidReward` with all that is wrong."""
    tree = _parse(source)
    problems = list(_import_problems(tree))
    found = _choose(tree, entry_point)
    if isinstance(found, Problem):
        raise InvalidReward.of([*problems, found], subject="The reward")
    if problems:
        raise InvalidReward.of(problems, subject="The reward")
    return found


def bind(entry: RewardEntry, columns: Sequence[str], *, field: str = "rewards") -> list[Problem]:
    """The columns that the reward needs and a data set with `columns` lacks."""
    return [_missing_column(entry, name, columns, field) for name in entry.columns if name not in columns]


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


def _choose(tree: ast.Module, entry_point: str | None) -> RewardEntry | Problem:
    functions = {node.name: node for node in tree.body if isinstance(node, _Function)}
    if entry_point is not None:
        if entry_point not in functions:
            return _no_entry(f"there is no top-level function `{entry_point}`", functions)
        return _entry(functions[entry_point])
    public = {name: _entry(node) for name, node in functions.items() if not name.startswith("_")}
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
    fix = f"Define a top-level function in one of the forms {_FORMS}."
    return Problem("entry_point", f"{message}; its top-level functions are: {names}", "no_entry_point", fix)


def _entry(node: _Function) -> RewardEntry | Problem:
    arguments = node.args
    named = [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]
    form = _form(named)
    if arguments.posonlyargs:
        return _uncallable(node, "takes arguments by position only")
    if form is None:
        return _uncallable(node, "is in none of the forms")
    provided = _provided(form, named)
    defaults = _with_default(arguments)
    columns = [name for name in named if name not in provided and name not in defaults]
    optional = [name for name in named if name not in provided and name in defaults]
    if form is RewardForm.OPENAI:
        if columns:
            return _uncallable(node, "needs more than `sample` and `item`")
        columns, optional = _item_columns(node)
    return RewardEntry(
        name=node.name,
        form=form,
        provided=provided,
        columns=tuple(dict.fromkeys(columns)),
        optional_columns=tuple(dict.fromkeys(optional)),
        takes_any=arguments.kwarg is not None or form is RewardForm.OPENAI,
        is_async=isinstance(node, ast.AsyncFunctionDef),
    )


def _uncallable(node: _Function, why: str) -> Problem:
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    written = f"{node.name}({', '.join(argument.arg for argument in arguments)})"
    return Problem("entry_point", f"`{written[:120]}` {why}", "no_entry_point", f"Parameters by name: {_FORMS}.")


def _with_default(arguments: ast.arguments) -> set[str]:
    named = arguments.args[len(arguments.args) - len(arguments.defaults) :]
    only_named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {argument.arg for argument in named} | {argument.arg for argument, value in only_named if value is not None}


def _form(named: Sequence[str]) -> RewardForm | None:
    if "completions" in named:
        return RewardForm.TRL
    if "sample" in named and "item" in named:
        return RewardForm.OPENAI
    if any(name in named for name in COMPLETION_PARAMETERS):
        return RewardForm.PER_SAMPLE
    return None


def _provided(form: RewardForm, named: Sequence[str]) -> tuple[str, ...]:
    match form:
        case RewardForm.TRL:
            return tuple(name for name in TRL_PARAMETERS if name in named)
        case RewardForm.OPENAI:
            return ("sample", "item")
        case RewardForm.PER_SAMPLE:
            completion = next(name for name in COMPLETION_PARAMETERS if name in named)
            return (completion, "prompt") if "prompt" in named else (completion,)


def _item_columns(node: _Function) -> tuple[list[str], list[str]]:
    """Keys read as `item["key"]`, and those the code asks for first: `"key" in item`, `item.get("key")`."""
    read, asked, catches = [], [], False
    for part in ast.walk(node):
        match part:
            case ast.Subscript(value=ast.Name(id="item"), slice=ast.Constant(value=str(key)), ctx=ast.Load()):
                read.append(key)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="item"), attr="get"), args=[ast.Constant(value=str(key)), *_]
            ):
                asked.append(key)
            case ast.Compare(left=ast.Constant(value=str(key)), comparators=[ast.Name(id="item")]):
                asked.append(key)
            case ast.ExceptHandler(type=kind):
                catches = catches or _catches(kind, _KEY_ERRORS)
    if catches:
        return [], [*read, *asked]
    return [key for key in read if key not in asked], asked


def _catches(kind: ast.expr | None, names: frozenset[str]) -> bool:
    """Whether `except kind:` catches one of the named exceptions; a bare `except:` does."""
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(one is None or (isinstance(one, ast.Name) and one.id in names) for one in kinds)


def _import_problems(tree: ast.Module) -> Iterator[Problem]:
    allowed = sys.stdlib_module_names | set(REWARD_LIBRARIES)
    for node in sorted(_required_imports(tree), key=lambda node: node.lineno):
        if isinstance(node, ast.ImportFrom) and node.level:
            message, fix = "is relative, but a reward is one file", "Put everything into one file."
            yield Problem("source", f"line {node.lineno}: the import {message}", "relative_import", fix)
            continue
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        for module in modules:
            if module.partition(".")[0] not in allowed:
                fix = f"Beside the standard library there are {', '.join(REWARD_LIBRARIES)}."
                message = f"line {node.lineno}: `{module}` is not there to be imported"
                yield Problem("source", message, "unknown_import", fix)


def _required_imports(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import but those that the code can do without: in `try` with a fallback, or for type checkers."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        waiting += _needed_children(node)


def _needed_children(node: ast.AST) -> list[ast.AST]:
    match node:
        case ast.Try(handlers=handlers) if any(_catches(handler.type, _IMPORT_ERRORS) for handler in handlers):
            return [*handlers, *node.orelse, *node.finalbody]
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return list(node.orelse)
        case _:
            return list(ast.iter_child_nodes(node))
