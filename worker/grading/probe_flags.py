"""What is wrong with a reward, told from the values that it gave to the probe's texts. Pure.

Values have no unit: 0.3 may be much or nothing. So they are measured from the least that any text got, 0, to what the
gold answer got, 1: a policy that finds junk worth half a right answer will write junk. Where no gold answer was
recognised, they are measured from zero to the highest that was seen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from core.reward_report import CaseResult, Flag, FlagCode, FlagLevel, Gold, Latency, ProbeCase

WARNING_SHARE = 0.5
INFO_SHARE = 0.2
SLOW_MEDIAN_S = 0.1
SLOW_MAX_S = 1.0
STEP_ROLLOUTS = 128
"""Of a step of usual size, for what slowness costs."""
_LEVELS = tuple(FlagLevel)
_ADD_A_TERM = "Pay for the answer in the same function, or gate this term: `gate` in the job's rewards."

_PAYS: dict[ProbeCase, tuple[FlagCode, str, str]] = {
    ProbeCase.CONSTANT: (
        FlagCode.PAYS_FOR_CONSTANT,
        "The same wrong sentence for every row",
        f"Start from 0 and add for what is right. {_ADD_A_TERM}",
    ),
    ProbeCase.EMPTY: (
        FlagCode.PAYS_FOR_EMPTY,
        "An empty completion",
        f"Return 0 when `completion.strip()` is empty. {_ADD_A_TERM}",
    ),
    ProbeCase.ECHO: (
        FlagCode.PAYS_FOR_ECHO,
        "The prompt said again",
        "Ask for the answer in a form of its own and compare that alone; do not search the whole text for it.",
    ),
    ProbeCase.FORMAT_ONLY: (
        FlagCode.PAYS_FOR_FORMAT_ONLY,
        "The form of an answer with nothing right in it",
        f"Keep what the form earns well below what the answer earns. {_ADD_A_TERM}",
    ),
    ProbeCase.NON_UTF8: (
        FlagCode.PAYS_FOR_NON_UTF8,
        "What broken bytes decode to",
        f"Start from 0 and add for what is right. {_ADD_A_TERM}",
    ),
    ProbeCase.OTHER_ANSWER: (
        FlagCode.PAYS_FOR_OTHER_ANSWER,
        "The answer of another row",
        "Compare with the row's own answer, not only its kind or shape; give less for what is merely near.",
    ),
    ProbeCase.EVERY_ANSWER: (
        FlagCode.PAYS_FOR_EVERY_ANSWER,
        "A list of the answers of all rows",
        "Extract one final answer and compare it; `answer in completion` pays for lists.",
    ),
}
_FORM = frozenset({ProbeCase.FORMAT_ONLY, ProbeCase.OTHER_ANSWER})


@dataclass(frozen=True, slots=True)
class Change:
    """An input that got two values."""

    case: ProbeCase
    row: int
    first: float | None
    second: float | None


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that the probe saw."""

    cases: Sequence[CaseResult]
    """Without gold."""
    gold: Gold | None
    outdone: tuple[CaseResult, CaseResult] | None = None
    """Where no guess at gold was recognised: the one that was paid the least beside a wrong answer in the same form,
    and that wrong answer."""
    no_gold: str | None = None
    """Why no gold answer was tried, as the end of a sentence."""
    synthetic: bool = False
    names_columns: bool = True
    """Whether the reward says which columns it compares with."""
    changes: Sequence[Change] = ()
    compared: int = 0
    """Inputs that were graded twice."""
    latency: Latency | None = None
    not_tried: Sequence[ProbeCase] = ()


@dataclass(frozen=True, slots=True)
class Scale:
    floor: float
    top: float
    is_gold: bool

    def share(self, value: float) -> float:
        return (value - self.floor) / (self.top - self.floor)

    def level(self, share: float) -> FlagLevel | None:
        if share >= WARNING_SHARE:
            return FlagLevel.WARNING
        return FlagLevel.INFO if share >= INFO_SHARE else None


def flags_of(seen: Seen) -> tuple[Flag, ...]:
    """The worst first."""
    if not any(case.outcomes.scored for case in _all(seen)):
        found = [*_never_scores(seen), *_slow(seen), *_out_of_time(seen)]
    else:
        found = [
            *(() if is_noise(seen) else _paid(seen)),
            *_unstable(seen),
            *_slow(seen),
            *_errors(seen),
            *_out_of_time(seen),
        ]
    return in_order(found)


def in_order(flags: Sequence[Flag]) -> tuple[Flag, ...]:
    return tuple(sorted(flags, key=lambda flag: _LEVELS.index(flag.level)))


def is_noise(seen: Seen) -> bool:
    """Whether the values change so much by themselves that comparing them says nothing."""
    results = [one for one in _all(seen) if one.least is not None and one.most is not None]
    spread = max(one.most or 0.0 for one in results) - min(one.least or 0.0 for one in results)
    moved = [change for change in seen.changes if _distance(change) >= INFO_SHARE * spread]
    return 2 * len(moved) > seen.compared


def scale_of(seen: Seen) -> Scale | None:
    """None where nothing was paid at all: penalties only, or zeros."""
    means = [case.mean for case in seen.cases if case.mean is not None]
    gold = seen.gold
    if gold is not None and gold.recognised and gold.result.mean is not None:
        floor = min(means, default=0.0)
        return Scale(min(floor, gold.result.mean - 1e-9), gold.result.mean, is_gold=True)
    top = max([*means, *([gold.result.mean] if gold and gold.result.mean is not None else [])])
    return Scale(0.0, top, is_gold=False) if top > 0 else None


def _paid(seen: Seen) -> Iterator[Flag]:
    scale = scale_of(seen)
    yield from _prefers_junk(seen)
    if scale is not None:
        yield from _pays(seen, scale)
        yield from _pays_for_length(seen, scale)
        yield from _fooled_by_markup(seen, scale)
    yield from _always_the_same(seen)
    yield from _gold_unknown(seen)


def _all(seen: Seen) -> list[CaseResult]:
    return [*seen.cases, *([seen.gold.result] if seen.gold else [])]


def _best(seen: Seen, case: ProbeCase) -> CaseResult | None:
    """Of a case's texts the one that was paid the most."""
    scored = [result for result in seen.cases if result.case is case and result.mean is not None]
    return max(scored, key=_mean, default=None)


def _mean(result: CaseResult) -> float:
    assert result.mean is not None, "only scored cases are compared"
    return result.mean


def _never_scores(seen: Seen) -> Iterator[Flag]:
    results = _all(seen)
    if not results:
        return
    errors, graded = sum(one.outcomes.errors for one in results), sum(map(_graded, results))
    broken = sum(one.outcomes.infrastructure_error for one in results)
    said = next((message for one in results for message in one.messages), None)
    message = _sentence(f"None of {graded} completions got a number, {errors} of them for an error", said)
    may_be_the_rows = seen.synthetic and not broken
    if broken:
        fix = "End every loop and search in time, and see that it does not crash by itself."
    else:
        fix = "Correct what it raises." if errors else "Return None only where the reward does not apply."
    if may_be_the_rows:
        fix += " The rows were made up: give some data before you believe this."
    level = FlagLevel.WARNING if may_be_the_rows else FlagLevel.ERROR
    yield Flag(code=FlagCode.NEVER_SCORES, level=level, message=message, fix=fix)


def _prefers_junk(seen: Seen) -> Iterator[Flag]:
    gold = seen.gold
    if gold is None or gold.result.mean is None or not gold.recognised:
        yield from _outdone(seen)
        return
    best = max((one for one in seen.cases if one.mean is not None), key=_mean, default=None)
    if best is None or not _is_more(_mean(best), gold.result.mean):
        return
    message = (
        f"{_named(best)} gets {_mean(best):.3g} on average, the gold answer {gold.result.mean:.3g}"
        f" (`{gold.column}` as {gold.wrapping})."
    )
    fix = "Give nothing the policy can write without the answer more than the answer: cap bonuses, weigh them less."
    yield Flag(code=FlagCode.PREFERS_JUNK_TO_GOLD, level=FlagLevel.ERROR, message=message, fix=fix)


def _outdone(seen: Seen) -> Iterator[Flag]:
    """It may be that our guesses are wrong, so this is no error."""
    if seen.outdone is None:
        return
    guess, wrong = seen.outdone
    means = [one.mean for one in seen.cases if one.mean is not None]
    if _mean(wrong) - _mean(guess) < INFO_SHARE * (max(means) - min([*means, _mean(guess)])):
        return
    message = (
        f"What should be the right answer ({guess.variant}) gets {_mean(guess):.3g} on average,"
        f" a wrong one in the same form {_mean(wrong):.3g}."
    )
    fix = "Compare with `==`, not `!=`; see which argument is the completion and which the answer."
    yield Flag(code=FlagCode.PREFERS_JUNK_TO_GOLD, level=FlagLevel.WARNING, message=message, fix=fix)


def _pays(seen: Seen, scale: Scale) -> Iterator[Flag]:
    for case, (code, what, fix) in _PAYS.items():
        best = _best(seen, case)
        level = None if best is None else scale.level(scale.share(_mean(best)))
        if best is None or level is None:
            continue
        if case in _FORM and not scale.is_gold:
            level = FlagLevel.INFO  # a term that is there for the form
        variant = f" ({best.variant})" if best.variant else ""
        message = f"{what}{variant} gets {_mean(best):.3g} on average{_compared(scale)}."
        yield Flag(code=code, level=level, message=message, fix=fix)


def _pays_for_length(seen: Seen, scale: Scale) -> Iterator[Flag]:
    long, short = _best(seen, ProbeCase.VERY_LONG), _best(seen, ProbeCase.CONSTANT)
    if long is None or short is None:
        return
    level = scale.level(scale.share(scale.floor + _mean(long) - _mean(short)))
    if level is None:
        return
    message = (
        f"A wrong sentence gets {_mean(short):.3g}, and {_mean(long):.3g} when it is said over and over"
        f"{_compared(scale)}."
    )
    fix = "Cap what length can earn, or take it back beyond a limit (built-ins `length`, `overlong`, `repetition`)."
    yield Flag(code=FlagCode.PAYS_FOR_LENGTH, level=level, message=message, fix=fix)


def _fooled_by_markup(seen: Seen, scale: Scale) -> Iterator[Flag]:
    """Beyond what the form of an answer earns by itself."""
    best = _best(seen, ProbeCase.MARKUP)
    plain = [_mean(one) for case in (ProbeCase.CONSTANT, ProbeCase.FORMAT_ONLY) if (one := _best(seen, case))]
    if best is None or not plain:
        return
    level = scale.level(scale.share(scale.floor + _mean(best) - max(plain)))
    if level is None:
        return
    message = (
        f"A wrong answer with injected text ({best.variant}) gets {_mean(best):.3g},"
        f" without it at most {max(plain):.3g}{_compared(scale)}."
    )
    fix = "Take the answer from one place, the last tags or one JSON field, and read no score out of the completion."
    yield Flag(code=FlagCode.FOOLED_BY_MARKUP, level=level, message=message, fix=fix)


def _always_the_same(seen: Seen) -> Iterator[Flag]:
    scored = [one for one in _all(seen) if one.least is not None and one.most is not None]
    values = {value for one in scored for value in (one.least, one.most)}
    if len(values) != 1 or len(scored) < 2:
        return
    value = values.pop() or 0.0
    graded = sum(one.outcomes.scored for one in scored)
    guessed = "" if seen.gold is None else ", and so did every guess at the gold answer"
    message = f"{graded} completions of {len(scored)} kinds all got {value:.3g}{guessed}."
    fix = "Groups with equal rewards teach nothing. Show it a right answer of yours: `podium reward test --completion`."
    has_judged = seen.gold is not None and seen.names_columns
    level = FlagLevel.WARNING if value > 0 or has_judged else FlagLevel.INFO
    yield Flag(code=FlagCode.ALWAYS_THE_SAME, level=level, message=message, fix=fix)


def _unstable(seen: Seen) -> Iterator[Flag]:
    if not seen.changes:
        return
    largest = max(seen.changes, key=_distance)
    message = (
        f"{len(seen.changes)} of {seen.compared} inputs got another value the second time:"
        f" {largest.case}, row {largest.row}: {_number(largest.first)}, then {_number(largest.second)}."
    )
    fix = "Seed what is random from the completion, keep no state between calls, and do not read clocks."
    level = FlagLevel.ERROR if is_noise(seen) else FlagLevel.WARNING
    yield Flag(code=FlagCode.UNSTABLE, level=level, message=message, fix=fix)


def _slow(seen: Seen) -> Iterator[Flag]:
    latency = seen.latency
    if latency is None or (latency.median_s <= SLOW_MEDIAN_S and latency.max_s <= SLOW_MAX_S):
        return
    message = (
        f"A completion takes {latency.median_s:.3g} s (median) and up to {latency.max_s:.3g} s:"
        f" {STEP_ROLLOUTS * latency.median_s:.3g} s for a step of {STEP_ROLLOUTS} rollouts."
    )
    fix = "Load and compile once, at the top of the file; bound searches and patterns; cut the text before parsing it."
    yield Flag(code=FlagCode.SLOW, level=FlagLevel.WARNING, message=message, fix=fix)


def _errors(seen: Seen) -> Iterator[Flag]:
    for case in dict.fromkeys(one.case for one in _all(seen)):
        results = [one for one in _all(seen) if one.case is case and one.outcomes.errors]
        if not results:
            continue
        errors, graded = sum(one.outcomes.errors for one in results), sum(map(_graded, results))
        said = next((message for one in results for message in one.messages), None)
        message = _sentence(f"{errors} of {graded} completions were not graded but failed", said)
        fix = "Score what cannot be parsed instead of raising: an error blanks the rollout, and enough pause the job."
        if seen.synthetic:
            fix += " The rows were made up: it may be their fault."
        level = FlagLevel.INFO if seen.synthetic else FlagLevel.WARNING
        yield Flag(code=FlagCode(f"errors_on_{case}"), level=level, message=message, fix=fix)


def _gold_unknown(seen: Seen) -> Iterator[Flag]:
    if seen.no_gold is not None:
        message = f"No gold answer was tried: {seen.no_gold}."
        fix = "Give rows whose columns hold the right answer, or show it one: `podium reward test --completion`."
        yield Flag(code=FlagCode.GOLD_NOT_TRIED, level=FlagLevel.INFO, message=message, fix=fix)
    elif seen.gold is not None and not seen.gold.recognised:
        message = (
            f"None of {seen.gold.candidates} guesses at the gold answer scored higher than a wrong answer in the same"
            f" form; the best, `{seen.gold.column}` as {seen.gold.wrapping}, got {_number(seen.gold.result.mean)}."
        )
        fix = "See that a right answer in your own format is paid: `podium reward test --completion`."
        yield Flag(code=FlagCode.GOLD_NOT_RECOGNISED, level=FlagLevel.INFO, message=message, fix=fix)


def _out_of_time(seen: Seen) -> Iterator[Flag]:
    if seen.not_tried:
        message = f"Not tried for want of time: {', '.join(seen.not_tried)}."
        fix = "Make the reward faster, or give the probe more time."
        yield Flag(code=FlagCode.OUT_OF_TIME, level=FlagLevel.INFO, message=message, fix=fix)


def _graded(result: CaseResult) -> int:
    return result.outcomes.scored + result.outcomes.no_answer + result.outcomes.errors


def _named(result: CaseResult) -> str:
    return f"{result.case} ({result.variant})" if result.variant else str(result.case)


def _compared(scale: Scale) -> str:
    if not scale.is_gold:
        return f"; the most that anything got is {scale.top:.3g}"
    return f"; the gold answer gets {scale.top:.3g}"


def _sentence(message: str, said: str | None) -> str:
    return f"{message}: {said}" if said else f"{message}."


def _is_more(value: float, than: float) -> bool:
    return value > than + 1e-9 + 1e-6 * abs(than)


def _distance(change: Change) -> float:
    if change.first is None or change.second is None:
        return float("inf")
    return abs(change.first - change.second)


def _number(value: float | None) -> str:
    return "no value" if value is None else f"{value:.3g}"
