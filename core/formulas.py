"""Arithmetic over the scores of rewards, as OpenAI's multi grader has it: `0.7 * answer + 0.3 * min(format, brevity)`.

Operators are + - * / ^ (power, also written **) and functions min, max, abs, floor, ceil, exp, sqrt, log (natural).
Everything is computed in floats: no text that can be written here takes long or fills memory.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

MAX_CHARS = 1000
MOST_CORNERS = 10

_OPERATORS: dict[type[ast.operator] | type[ast.unaryop], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,  # `**` would make a complex number of (-1) ** 0.5
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: dict[str, tuple[Callable[..., float], int | None]] = {
    "min": (min, None),
    "max": (max, None),
    "abs": (abs, 1),
    "floor": (math.floor, 1),
    "ceil": (math.ceil, 1),
    "exp": (math.exp, 1),
    "sqrt": (math.sqrt, 1),
    "log": (math.log, 1),
}
"""With how many arguments; None: at least two."""


class FormulaError(ValueError):
    """Text that is not a formula, or scores for which it has no value; its message says which part."""


@dataclass(frozen=True, slots=True)
class Formula:
    text: str
    names: tuple[str, ...]
    """The scores that it reads, in order of appearance."""
    _root: ast.expr

    def evaluate(self, scores: Mapping[str, float]) -> float:
        """Raises `FormulaError` where the value is not a finite number: a division by zero, the log of 0."""
        try:
            value = float(_value(self._root, scores))
        except (ArithmeticError, ValueError) as error:
            raise FormulaError(f"{self.text}: {error}") from None
        if not math.isfinite(value):
            raise FormulaError(f"{self.text}: the value is {value}")
        return value

    def best(self) -> float:
        """The largest value over all scores of 0 and 1: what a perfect answer gets, where scores are from 0 to 1.

        Raises `FormulaError` when it has no value at any of them. Above `MOST_CORNERS` names only all ones are tried.
        """
        count = len(self.names)
        corners = product((0.0, 1.0), repeat=count) if count <= MOST_CORNERS else [(1.0,) * count]
        values, failure = [], FormulaError(f"{self.text}: has no value")
        for corner in corners:
            try:
                values.append(self.evaluate(dict(zip(self.names, corner, strict=True))))
            except FormulaError as error:
                failure = error
        if not values:
            raise failure
        return max(values)


def parse_formula(text: str) -> Formula:
    """Raises `FormulaError`."""
    if len(text) > MAX_CHARS:
        raise FormulaError(f"is longer than {MAX_CHARS} characters")
    try:
        root = ast.parse(text.strip().replace("^", "**"), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise FormulaError("is not an arithmetic expression") from None
    names: dict[str, None] = {}
    try:
        _check(root, names)
    except RecursionError:
        raise FormulaError("is nested too deeply") from None
    if not names:
        raise FormulaError("reads no score")
    return Formula(text, tuple(names), root)


def _check(node: ast.expr, names: dict[str, None]) -> None:
    match node:
        case ast.Constant(value=value) if isinstance(value, int | float) and not isinstance(value, bool):
            _float(value)
        case ast.Name(id=name) if name in _FUNCTIONS:
            raise FormulaError(f"`{name}` is a function: write `{name}(...)`")
        case ast.Name(id=name):
            names[name] = None
        case ast.UnaryOp(op=kind, operand=operand) if type(kind) in _OPERATORS:
            _check(operand, names)
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _OPERATORS:
            _check(left, names)
            _check(right, names)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            _check_count(name, len(arguments))
            for argument in arguments:
                _check(argument, names)
        case _:
            part = ast.unparse(node)[:60]
            allowed = ", ".join(_FUNCTIONS)
            raise FormulaError(f"`{part}` is not allowed: there are numbers, names, + - * / ^ and {allowed}")


def _check_count(name: str, given: int) -> None:
    wanted = _FUNCTIONS[name][1]
    if given != wanted and not (wanted is None and given >= 2):
        raise FormulaError(f"`{name}` takes {wanted or 'two or more'} argument{'' if wanted else 's'}, not {given}")


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise FormulaError("has a number that is too large") from None


def _value(node: ast.expr, scores: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name):
            return scores[name]
        case ast.UnaryOp(op=kind, operand=operand):
            return _OPERATORS[type(kind)](_value(operand, scores))
        case ast.BinOp(left=left, op=kind, right=right):
            return _OPERATORS[type(kind)](_value(left, scores), _value(right, scores))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name][0](*(_value(argument, scores) for argument in arguments))
        case _:
            raise AssertionError("checked when it was parsed")
