"""What the reports on a job's uploaded rewards have to say about the job."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from app.jobs.checks import RewardDoesNotLoad, refusal
from app.jobs.facts import Facts, KnownReward
from app.jobs.resolve import Resolved
from app.rewards.reports import ReportFacts, Reports, ReportStatus, ask
from core.db import reward_probes
from core.errors import Problem
from core.ids import RewardVersionId, TenantId
from core.reward_report import ProbeReport
from core.spec import PinnedReward

_LATER = "Preview again in a moment; GET /v1/rewards/{id}/report shows it too."


def unloadable(session: Session, facts: Facts) -> list[Problem]:
    """The rewards of which the newest report says that they do not load, whatever data set it was made with."""
    uploaded = {reward.version_id: reward for reward in facts.rewards if isinstance(reward, KnownReward)}
    answers = reward_probes.newest_answers(session, [version_id for version_id in uploaded if version_id is not None])
    reports = {version_id: ProbeReport.model_validate(answer) for version_id, answer in answers.items()}
    return [
        _does_not_load(uploaded[version_id].name, uploaded[version_id].field, report)
        for version_id, report in reports.items()
        if not report.loads
    ]


def with_reports(reports: Reports, tenant_id: TenantId, resolved: Resolved) -> Resolved:
    """The preview, with the flags of each uploaded reward on the training file as warnings.

    A reward that was not probed on that file yet is probed now. Raises for one that turns out not to load.
    """
    terms = list(_uploaded(resolved))
    file_id = resolved.spec.training.file_id
    with reports.sessions.begin() as session:
        tasks = [ask(session, tenant_id, version_id, file_id) for _, _, version_id in terms]
    found = [ReportFacts.of(task) for task in reports.wait(tasks)]
    problems: list[Problem] = []
    warnings: list[Problem] = []
    for (field, name, _), facts in zip(terms, found, strict=True):
        if facts.report is not None and not facts.report.loads:
            problems.append(_does_not_load(name, field, facts.report))
        else:
            warnings += _warnings(field, name, facts)
    if problems:
        raise refusal(problems)
    return replace(resolved, warnings=(*resolved.warnings, *warnings))


def _uploaded(resolved: Resolved) -> Iterator[tuple[str, str, RewardVersionId]]:
    """Path in the body, name, version; only our own method can name uploaded rewards."""
    for number, term in enumerate(resolved.spec.rewards):
        if isinstance(term, PinnedReward) and term.version_id is not None:
            yield f"method.grpo.rewards[{number}]", term.name, term.version_id


def _does_not_load(name: str, field: str, report: ProbeReport) -> Problem:
    first = (report.load_error or "").strip().splitlines()
    fix = report.flags[0].fix if report.flags else None
    message = f"`{name}` does not load: {first[0] if first else 'its probe says so'}"
    return Problem(field, message, RewardDoesNotLoad.code, fix)


def _warnings(field: str, name: str, facts: ReportFacts) -> Sequence[Problem]:
    match facts.report_status:
        case ReportStatus.PENDING:
            message = f"`{name}` is still being probed on the training file"
            return [Problem(field, message, "report_pending", _LATER)]
        case ReportStatus.FAILED:
            reason = "" if facts.report_error is None else f": {facts.report_error.message}"
            fix = None if facts.report_error is None else facts.report_error.fix
            return [Problem(field, f"`{name}` could not be probed{reason}", "report_failed", fix)]
        case ReportStatus.DONE:
            assert facts.report is not None
            return [Problem(field, f"`{name}`: {flag.message}", flag.code, flag.fix) for flag in facts.report.flags]
