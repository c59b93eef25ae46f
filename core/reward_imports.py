"""What reward code may import, and what of a source goes beyond it. Read from the syntax tree."""

import ast
import sys
from collections.abc import Iterator, Mapping

from core.errors import Problem

REWARD_LIBRARIES = (
    *("jsonschema", "latex2sympy2_extended", "math_verify", "mpmath", "numpy"),
    *("pydantic", "rapidfuzz", "regex", "scipy", "sympy"),
)
"""What reward code may import beside the standard library: installed with the `worker` extra, and shown inside the
sandbox (`worker.grading.image`)."""
_FIREWORKS = frozenset({"EvaluateResult", "Message", "MetricResult", "reward_function"})
STAND_INS: Mapping[str, frozenset[str]] = {
    "eval_protocol": _FIREWORKS,
    "osmosis_ai": frozenset({"osmosis_reward"}),
    "reward_kit": _FIREWORKS,
}
"""Libraries that rewards of those ecosystems name their types and decorators from; of each, what is there
(`worker.grading.stand_ins`)."""
STAND_IN_MODULES = frozenset({"models", "reward_function", "typed_interface"})
"""Submodules of a stand-in: the same names can be imported from them."""

_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "Exception"})


def import_problems(tree: ast.Module) -> Iterator[Problem]:
    """Imports that would fail on the worker, in the order of their lines."""
    for node in sorted(_required_imports(tree), key=lambda node: node.lineno):
        if isinstance(node, ast.ImportFrom) and node.level:
            message, fix = "is relative, but a reward is one file", "Put everything into one file."
            yield Problem("source", f"line {node.lineno}: the import {message}", "relative_import", fix)
            continue
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            yield from _module_problems(module, names, node.lineno)


def catches(kind: ast.expr | None, names: frozenset[str]) -> bool:
    """Whether `except kind:` catches one of the named exceptions; a bare `except:` does."""
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(one is None or (isinstance(one, ast.Name) and one.id in names) for one in kinds)


def _module_problems(module: str, names: list[str], line: int) -> Iterator[Problem]:
    top, _, rest = module.partition(".")
    if top in STAND_INS:
        yield from _stand_in_problems(top, rest, names, line)
    elif top not in sys.stdlib_module_names and top not in REWARD_LIBRARIES:
        fix = f"Beside the standard library there are {', '.join(REWARD_LIBRARIES)}."
        yield Problem("source", f"line {line}: `{module}` is not there to be imported", "unknown_import", fix)


def _stand_in_problems(library: str, rest: str, names: list[str], line: int) -> Iterator[Problem]:
    offered = STAND_INS[library]
    fix = f"Of `{library}` there are {', '.join(sorted(offered))}; keep the functions that use more elsewhere."
    if rest and rest not in STAND_IN_MODULES:
        message = f"line {line}: `{library}.{rest}` is not there to be imported"
        yield Problem("source", message, "unknown_import", fix)
        return
    for name in names:
        if name not in offered and name not in STAND_IN_MODULES:
            message = f"line {line}: `{library}` has no `{name}` here"
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
        case ast.Try(handlers=handlers) if any(catches(handler.type, _IMPORT_ERRORS) for handler in handlers):
            return [*handlers, *node.orelse, *node.finalbody]
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return list(node.orelse)
        case _:
            return list(ast.iter_child_nodes(node))
