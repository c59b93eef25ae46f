"""From what the grading worker found to OpenAI's reply. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast, get_args

from app.graders.schemas import GraderErrors, GraderMetadata, GraderRunReply, PodiumGrader, TriedGrader
from app.jobs.graders import MultiGrader
from core.builtin_rewards.comparison import FormulaReward, StringCheck, TextSimilarity
from core.grading_tasks import GraderRan, TermGrade
from core.spec import PinnedReward, RewardTerm
from core.strict_json import strict_json
from core.templates import Variable

_ERRORS = ("user_error", "infrastructure_error")
_OUTCOMES = get_args(GraderRunReply.model_fields["outcome"].annotation)
Flags = Mapping[str, bool | str]


def reply_of(grader: TriedGrader, terms: Sequence[RewardTerm], sample: str, ran: GraderRan) -> GraderRunReply:
    failed = [(term, ran.grades[term.name]) for term in terms if ran.grades[term.name].outcome in _ERRORS]
    first = _cause(failed)
    fallback = "no_answer" if ran.reward is None else "scored"
    outcome = first[1].outcome if first else fallback
    assert outcome in _OUTCOMES
    return GraderRunReply(
        reward=ran.reward,
        metadata=GraderMetadata(
            name=grader.name,
            type=grader.type,
            errors=GraderErrors.model_validate({**_sample_flags(terms, sample), **_merged(failed)}),
            execution_time=sum(grade.latency_s for grade in ran.grades.values()),
            scores=_scores(ran.grades),
        ),
        sub_rewards=_sub_rewards(grader, terms, ran.grades),
        outcome=cast("Any", outcome),
        message=first[1].message if first else None,
        traceback=first[1].traceback if first else None,
        output=ran.output,
    )


def _cause(failed: Sequence[tuple[RewardTerm, TermGrade]]) -> tuple[RewardTerm, TermGrade] | None:
    """A formula fails when what it reads has failed: that is told first, because it stands first."""
    return failed[0] if failed else None


def _merged(failed: Sequence[tuple[RewardTerm, TermGrade]]) -> dict[str, bool | str]:
    flags: dict[str, bool | str] = {}
    for term, grade in failed:
        if not (flags and _is_formula(term)):
            flags = {**_flags(term, grade), **flags}
    return flags


def _flags(term: RewardTerm, grade: TermGrade) -> Flags:
    if grade.timed_out:
        return {"unresponsive_reward_error": True}
    if isinstance(term, PinnedReward):
        return _python_flags(grade)
    if grade.outcome == "user_error" and isinstance(term.parameters, StringCheck | TextSimilarity):
        return {"invalid_variable_error": True}
    return {"formula_parse_error": True} if _is_formula(term) else {"other_error": True}


def _python_flags(grade: TermGrade) -> Flags:
    if grade.outcome == "user_error":
        details = "\n".join(part for part in (grade.message, grade.traceback) if part)
        return {"python_grader_runtime_error": True, "python_grader_runtime_error_details": details}
    return {"python_grader_server_error": True, "python_grader_server_error_type": grade.message or grade.outcome}


def _sample_flags(terms: Sequence[RewardTerm], sample: str) -> Flags:
    if not any(_reads_json(term) for term in terms):
        return {}
    try:
        strict_json(sample)
    except (ValueError, RecursionError):
        return {"sample_parse_error": True}
    return {}


def _reads_json(term: RewardTerm) -> bool:
    if isinstance(term, PinnedReward) or not isinstance(term.parameters, StringCheck | TextSimilarity):
        return False
    parts = [part for template in term.parameters.templates for part in template.parts]
    return any(isinstance(part, Variable) and str(part).startswith("sample.output_json") for part in parts)


def _is_formula(term: RewardTerm) -> bool:
    return not isinstance(term, PinnedReward) and isinstance(term.parameters, FormulaReward)


def _scores(grades: Mapping[str, TermGrade]) -> dict[str, float]:
    """Of several terms under `term/name`, as a job's metrics are."""
    return dict(_named_scores(grades))


def _named_scores(grades: Mapping[str, TermGrade]) -> Iterator[tuple[str, float]]:
    for term, grade in grades.items():
        for name, value in grade.metrics.items():
            yield (name if len(grades) == 1 else f"{term}/{name}"), value


def _sub_rewards(
    grader: TriedGrader, terms: Sequence[RewardTerm], grades: Mapping[str, TermGrade]
) -> dict[str, float | None]:
    match grader:
        case MultiGrader():
            shown = terms[:-1]  # the last one is the formula
        case PodiumGrader():
            shown = terms
        case _:
            shown = ()
    return {term.name: grades[term.name].value for term in shown}
