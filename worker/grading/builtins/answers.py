"""Rewards for the right answer: text, numbers, patterns and choices."""

import string
from collections import deque
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import regex as regex_engine

from core.builtin_rewards.answers import Contains, ExactMatch, MultipleChoice, Numeric, Regex
from worker.grading.builtins.outcomes import (
    NO_ANSWER,
    PATTERN_TIMEOUT_S,
    Score,
    Scorer,
    UnfitDataError,
    passed,
    read_after,
    reference,
    reference_texts,
)
from worker.grading.grades import Rollout

MAX_EXPONENT = 400
"""Numbers beyond 10^400 are not read: no answer has them, and exact arithmetic on them could take for ever."""

_ARTICLES = frozenset({"a", "an", "the"})
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NUMBER = regex_engine.compile(
    r"""
    (?<![\w.]) [-+\u2212]? \$?
    (?: (?: \d{1,3}(?:,\d{3})+ | \d+ ) (?: \.\d+ )? | \.\d+ )
    (?: [eE][-+]?\d{1,4} )?
    (?: \s*/\s* \d+ (?![\d/]) )?  # a fraction, not a date
    """,
    regex_engine.VERBOSE,
)
_EXPLICIT = r"""
    \\boxed\{{ \s*\(? (?P<label>(?i:{labels})) \)?\s* \}}
  | (?i:answer\s*(?:is|:)) \s*\**\s*\(?
    (?: (?P<label>{labels}) \)?(?!\w) | (?P<label>(?i:{labels})) (?=[)*]*\s*(?:[.,;:!?](?!\w)|\n|$)) )
"""
"""Written otherwise than the label is, it must end the phrase: "the answer is a hard one to find" is no A."""


def exact_match(parameters: ExactMatch) -> Scorer:
    canonical = partial(_canonical, parameters=parameters)
    literal = partial(_canonical, parameters=parameters.model_copy(update={"normalize": False}))

    def is_it(text: str, one: str) -> bool:
        """A reference that is only punctuation or an article would be equal to every text without words."""
        wanted = canonical(one)
        return canonical(text) == wanted if wanted else literal(text) == literal(one)

    def score(rollout: Rollout) -> Score:
        wanted = reference_texts(rollout, parameters.column)
        text = read_after(rollout.completion, parameters.after)
        return passed(any(is_it(text, one) for one in wanted)) if wanted else NO_ANSWER

    return score


def numeric(parameters: Numeric) -> Scorer:
    pattern = regex_engine.compile(parameters.pattern) if parameters.pattern else None
    tolerance, relative = Fraction(str(parameters.tolerance)), Fraction(str(parameters.relative))

    def extract(text: str) -> Fraction | None:
        if parameters.extract == "boxed":
            boxed = last_boxed(text)
            return None if boxed is None else last_number(boxed)
        if pattern is not None:
            found = _last_group(pattern, text, None)
            return None if found is None else last_number(found)
        return last_number(text)

    def score(rollout: Rollout) -> Score:
        wanted = [_reference_number(text, parameters.column) for text in reference_texts(rollout, parameters.column)]
        if not wanted:
            return NO_ANSWER
        answer = extract(read_after(rollout.completion, parameters.after))
        if answer is None:
            return passed(False)
        return passed(any(abs(answer - one) <= max(tolerance, relative * abs(one)) for one in wanted))

    return score


def regex(parameters: Regex) -> Scorer:
    pattern = regex_engine.compile(parameters.pattern, _flags(parameters.flags))
    find = pattern.fullmatch if parameters.full else pattern.search

    def score(rollout: Rollout) -> Score:
        text = read_after(rollout.completion, parameters.after)
        if parameters.column is None:
            return passed(_bounded(find, text) is not None)
        wanted = reference_texts(rollout, parameters.column)
        if not wanted:
            return NO_ANSWER
        found = _last_group(pattern, text, parameters.group, full=parameters.full)
        return passed(found is not None and found.strip() in {one.strip() for one in wanted})

    return score


def contains(parameters: Contains) -> Scorer:
    enough = all if parameters.require == "all" else any

    def fold(text: str) -> str:
        return text.casefold() if parameters.ignore_case else text

    def score(rollout: Rollout) -> Score:
        wanted: Sequence[str] = parameters.text
        if parameters.column is not None:
            wanted = reference_texts(rollout, parameters.column)
        if not wanted:
            return NO_ANSWER
        if not all(map(str.strip, wanted)):
            raise UnfitDataError(f"the column `{parameters.column}` holds an empty text, which everything contains")
        text = fold(read_after(rollout.completion, parameters.after))
        return passed(enough(fold(one) in text for one in wanted))

    return score


def multiple_choice(parameters: MultipleChoice) -> Scorer:
    by_length = sorted(parameters.choices, key=len, reverse=True)
    labels = "|".join(regex_engine.escape(label, special_only=False) for label in by_length)
    explicit = regex_engine.compile(_EXPLICIT.format(labels=labels), regex_engine.VERBOSE)
    alone = regex_engine.compile(rf"[\s*(\[]*(?P<label>{labels})[\s*)\].:]*")
    first = regex_engine.compile(rf"[\s*(\[]*(?P<label>{labels})[*]*[)\].:](?!\w)")
    by_fold = {label.casefold(): label for label in parameters.choices}

    def choose(text: str) -> str | None:
        lines = text.strip().splitlines()
        if found := list(explicit.finditer(text)):
            label = str(found[-1]["label"])
            return label if label in parameters.choices else by_fold[label.casefold()]
        if lines and (match := alone.fullmatch(lines[-1]) or first.match(lines[0])):
            return str(match["label"])
        return None

    def score(rollout: Rollout) -> Score:
        wanted = reference(rollout, parameters.column)
        if wanted is None:
            return NO_ANSWER
        label = _label(wanted, parameters)
        return passed(choose(read_after(rollout.completion, parameters.after)) == label)

    return score


def last_number(text: str) -> Fraction | None:
    """The last number in `text`, exactly: `1,234.5`, `-3/4`, `6.02e23`."""
    for match in reversed(list(_NUMBER.finditer(text))):
        number = _number(match.group())
        if number is not None:
            return number
    return None


def last_boxed(text: str) -> str | None:
    """What stands in the last `\\boxed{...}`, with its inner braces."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for place in range(begin, len(text)):
        if text[place] == "{":
            depth += 1
        elif text[place] == "}":
            if depth == 0:
                return text[begin:place]
            depth -= 1
    return None


def _canonical(text: str, parameters: ExactMatch) -> str:
    if parameters.normalize:
        words = text.lower().translate(_NO_PUNCTUATION).split()
        return " ".join(word for word in words if word not in _ARTICLES)
    text = text.strip() if parameters.strip else text
    return text.casefold() if parameters.ignore_case else text


def _number(text: str) -> Fraction | None:
    """Of a match of `_NUMBER`; None beyond `MAX_EXPONENT`, and for a division by zero."""
    if len(text) > MAX_EXPONENT:
        return None
    top, _, bottom = text.replace(",", "").replace("$", "").replace("\u2212", "-").partition("/")
    numerator, denominator = Decimal(top.strip()), int(bottom or "1")
    if not denominator or (numerator and abs(numerator.adjusted()) > MAX_EXPONENT):
        return None
    return Fraction(numerator) / denominator


def _reference_number(text: str, column: str) -> Fraction:
    boxed = last_boxed(text)
    number = last_number(text if boxed is None else boxed)
    if number is None:
        raise UnfitDataError(f"the column `{column}` has no number: {text[:80]!r}")
    return number


def _flags(letters: str) -> int:
    flags = 0
    for letter in letters:
        flags |= getattr(regex_engine, letter.upper())
    return flags


def _last_group(
    pattern: regex_engine.Pattern[str], text: str, group: int | str | None, *, full: bool = False
) -> str | None:
    """The group of the last match; unset: group 1, or the whole match of a pattern without groups."""
    match = _bounded(pattern.fullmatch if full else _last_match(pattern), text)
    return None if match is None else match[min(1, pattern.groups) if group is None else group]


def _last_match(pattern: regex_engine.Pattern[str]) -> Callable[..., Any]:
    def find(text: str, *, timeout: float) -> regex_engine.Match[str] | None:
        matches = deque(pattern.finditer(text, timeout=timeout), maxlen=1)
        return matches[0] if matches else None

    return find


def _bounded(find: Callable[..., Any], text: str) -> Any:
    """`find(text)` within the time for one search; raises `UnfitDataError`."""
    try:
        return find(text, timeout=PATTERN_TIMEOUT_S)
    except TimeoutError:
        message = f"the pattern needs more than {PATTERN_TIMEOUT_S:g} s for this completion of {len(text)} characters"
        raise UnfitDataError(message) from None


def _label(wanted: object, parameters: MultipleChoice) -> str:
    """The reference as one of the labels; raises `UnfitDataError`."""
    choices = parameters.choices
    if isinstance(wanted, int) and not isinstance(wanted, bool) and 0 <= wanted < len(choices):
        return choices[wanted]
    if isinstance(wanted, str) and wanted.strip() in choices:
        return wanted.strip()
    raise UnfitDataError(f"the column `{parameters.column}` holds {str(wanted)[:40]!r}, none of the choices")
