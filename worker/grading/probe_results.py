"""From grades to what the report says: results by case, and which guess at the right answer was one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from core.reward_report import CaseResult, Columns, Gold, Latency, Outcomes, ProbeCase
from worker.grading.grades import Grade, GradeOutcome
from worker.grading.probe_flags import Seen
from worker.grading.probe_inputs import Guess, Input, answer_columns, every_answer, guesses, junk, other_answer
from worker.grading.probe_runs import Runs
from worker.grading.values import storable

_SENT_CHARS = 60
_MESSAGE_CHARS = 300
_MOST_MESSAGES = 3
_LEAST_GAIN = 0.05
"""How much more than a wrong answer gold must be paid, as a share of what lies between gold and the least that anything
got: lest a bonus for length be taken for it."""

_Controls = Mapping[tuple[ProbeCase, str | None], CaseResult]


@dataclass(frozen=True, slots=True)
class Guessed:
    """A guess at the right answer, and what it was paid beside a wrong answer in the same form."""

    guess: Guess
    result: CaseResult
    control: CaseResult | None
    """None where no wrong answer got a number."""

    @property
    def gain(self) -> float | None:
        if self.result.mean is None:
            return None
        wrong = self.control.mean if self.control is not None else None
        return self.result.mean - (wrong or 0.0)

    @property
    def is_recognised(self) -> bool:
        return self.gain is not None and self.gain > 1e-9


def seen_of(runs: Runs, columns: Columns, *, synthetic: bool) -> Seen:
    """Show everything, choose the gold answer, ask all of it again."""
    shown = junk(runs.rows)
    names = answer_columns(columns.required, columns.optional, takes_any=columns.takes_any, row=runs.rows[0])
    answers = [] if synthetic else guesses(runs.rows, names)
    runs.warm_up()
    runs.show([*shown, *answers])
    tried = _guessed(runs, answers, _results(runs, shown))
    best = choose(tried)
    if best is not None:
        shown += _show_answers(runs, best)
    runs.repeat()
    cases = _results(runs, shown)
    return Seen(
        cases=cases,
        gold=None if best is None else _gold(best, cases, len(tried)),
        outdone=outdone(tried),
        no_gold=None if best is not None else _no_gold(answers, synthetic=synthetic),
        synthetic=synthetic,
        names_columns=bool(columns.required),
        changes=runs.changes,
        compared=runs.compared,
        latency=_latency(runs.latencies_s),
        not_tried=runs.not_tried,
    )


def choose(tried: Sequence[Guessed]) -> Guessed | None:
    """Of those that were recognised, else of all, the one that was paid the most; the first of several."""
    return max(tried, key=_merit, default=None)


def outdone(tried: Sequence[Guessed]) -> tuple[CaseResult, CaseResult] | None:
    """The guess that lost the most to its wrong answer, if none won."""
    losers = [one for one in tried if one.control is not None and one.gain is not None and one.gain < 0]
    if not losers or any(one.is_recognised for one in tried):
        return None
    worst = min(losers, key=lambda one: one.gain or 0.0)
    assert worst.control is not None
    return worst.result, worst.control


def result_of(shown: Input, grades: Sequence[Grade]) -> CaseResult:
    counts = Counter(grade.outcome for grade in grades)
    values = [grade.value for grade in grades if grade.value is not None]
    messages = dict.fromkeys(grade.message[:_MESSAGE_CHARS] for grade in grades if grade.message)
    return CaseResult(
        case=shown.case,
        variant=shown.variant,
        sent=_beginning(next((text for text in shown.texts if text is not None), "")),
        outcomes=Outcomes(
            scored=counts[GradeOutcome.SCORED],
            no_answer=counts[GradeOutcome.NO_ANSWER],
            user_error=counts[GradeOutcome.USER_ERROR],
            infrastructure_error=counts[GradeOutcome.INFRASTRUCTURE_ERROR],
            timed_out=sum(grade.timed_out for grade in grades),
        ),
        mean=fmean(values) if values else None,
        least=min(values, default=None),
        most=max(values, default=None),
        messages=tuple(messages)[:_MOST_MESSAGES],
    )


def _results(runs: Runs, shown: Sequence[Input]) -> list[CaseResult]:
    answered = ((one, runs.of(one)) for one in shown)
    return [result_of(one, grades) for one, grades in answered if grades]


def _guessed(runs: Runs, answers: Sequence[Guess], cases: Sequence[CaseResult]) -> list[Guessed]:
    controls = {(case.case, case.variant): case for case in cases if case.mean is not None}
    constant = controls.get((ProbeCase.CONSTANT, None))
    answered = ((one, runs.of(one)) for one in answers)
    return [
        Guessed(one, result_of(one, grades), controls.get((ProbeCase.FORMAT_ONLY, one.control), constant))
        for one, grades in answered
        if grades
    ]


def _show_answers(runs: Runs, best: Guessed) -> list[Input]:
    """What only the form of gold makes possible."""
    made = (other_answer(best.guess), every_answer(best.guess) if best.is_recognised else None)
    shown = [one for one in made if one is not None]
    runs.show(shown)
    return shown


def _merit(one: Guessed) -> tuple[bool, float]:
    return one.is_recognised, float("-inf") if one.result.mean is None else one.result.mean


def _gold(best: Guessed, cases: Sequence[CaseResult], candidates: int) -> Gold:
    other = next((case for case in cases if case.case is ProbeCase.OTHER_ANSWER and case.mean is not None), None)
    checked = best if other is None else replace(best, control=other)
    least = min((case.mean for case in cases if case.mean is not None), default=0.0)
    is_recognised = checked.is_recognised and (checked.gain or 0.0) > _LEAST_GAIN * ((best.result.mean or 0.0) - least)
    return Gold(
        column=best.guess.column,
        wrapping=best.guess.wrapping,
        recognised=is_recognised,
        candidates=candidates,
        result=best.result,
    )


def _no_gold(answers: Sequence[Guess], *, synthetic: bool) -> str:
    if synthetic:
        return "there is no data, and the rows were made up"
    return "there was no time" if answers else "no column that the reward reads holds an answer"


def _latency(latencies_s: Sequence[float]) -> Latency | None:
    if not latencies_s:
        return None
    return Latency(median_s=median(latencies_s), max_s=max(latencies_s))


def _beginning(text: str) -> str:
    shown = storable(text[:_SENT_CHARS])
    return f"{shown} ..." if len(text) > _SENT_CHARS else shown
