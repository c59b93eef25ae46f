"""What the reports on a job's rewards, uploaded or inside its body, have to say about the job."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from app.jobs.checks import RewardDoesNotLoad, refusal
from app.jobs.facts import Facts, KnownReward
from app.jobs.resolve import Resolved
from app.rewards.reports import ReportFacts, Reports, ReportStatus, ask
from core.db import reward_probes, rewards
from core.db.models import GradingTask
from core.db.reward_probes import Called
from core.errors import Problem
from core.grading_tasks import ProbeSource
from core.ids import RewardVersionId, TenantId
from core.reward_report import ProbeReport
from core.reward_source import RewardForm
from core.spec import PinnedReward

_LATER = "Preview again in a moment; of an uploaded reward, GET /v1/rewards/{id}/report shows it too."


def unloadable(session: Session, facts: Facts) -> tuple[list[Problem], list[Problem]]:
    """The rewards of which the newest report says that they do not load, whatever data set it was made with.

    Problems where Python says why, warnings where the process crashed or hung: that may have been the machine.
    """
    problems: list[Problem] = []
    warnings: list[Problem] = []
    for reward in facts.rewards:
        if isinstance(reward, KnownReward) and reward.version_id is not None:
            report = _newest(session, _called(session, reward.version_id, reward.entry.form, reward.entry.name))
            if report is not None and not report.loads:
                found = problems if report.load_raised else warnings
                found.append(_does_not_load(reward.name, reward.field, report))
    return problems, warnings


def with_reports(reports: Reports, tenant_id: TenantId, resolved: Resolved) -> Resolved:
    """The preview, with the flags of each reward of the tenant's own on the training file as warnings.

    A reward that was not probed on that file yet is probed now, and so is one that did not load. Raises for one of
    which Python says why it does not.
    """
    with reports.sessions.begin() as session:
        probes = list(_probes(session, tenant_id, resolved))
    found = [ReportFacts.of(task) for task in reports.wait([probe.task for probe in probes])]
    problems: list[Problem] = []
    warnings: list[Problem] = []
    for probe, facts in zip(probes, found, strict=True):
        report = facts.report or probe.before  # what was known stands until it is known better
        if report is not None and not report.loads and report.load_raised:
            problems.append(_does_not_load(probe.name, probe.field, report))
        else:
            warnings += _warnings(probe.field, probe.name, facts)
    if problems:
        raise refusal(problems)
    return replace(resolved, warnings=(*resolved.warnings, *warnings))


@dataclass(frozen=True, slots=True)
class _Probe:
    """Of one reward on the training file."""

    field: str
    """Its path in the body."""
    name: str
    task: GradingTask
    before: ProbeReport | None = None
    """The newest report, on whatever data set."""


def _probes(session: Session, tenant_id: TenantId, resolved: Resolved) -> Iterator[_Probe]:
    file_id = resolved.spec.training.file_id
    for field, term in zip(resolved.fields, resolved.spec.rewards, strict=True):
        if not isinstance(term, PinnedReward):
            continue
        if term.version_id is not None:
            called = _called(session, term.version_id, term.form, term.entry_point)
            before = _newest(session, called)
            yield _Probe(field, term.name, ask(session, tenant_id, called, file_id), before)
        else:
            asked = ProbeSource(
                source=resolved.inline_sources[term.name],
                source_sha256=term.source_sha256,
                entry_point=term.entry_point,
                form=term.form,
                file_id=file_id,
            )
            yield _Probe(field, term.name, reward_probes.of_source(session, tenant_id, asked))


def _called(session: Session, version_id: RewardVersionId, form: RewardForm, entry_point: str) -> Called:
    """A job may say another form than the version has, and then the reward is another one."""
    version = rewards.version(session, version_id)
    own = {} if version is None else version.entry
    return Called(
        version_id,
        form=None if form == own.get("form") else form,
        entry_point=None if entry_point == own.get("name") else entry_point,
    )


def _newest(session: Session, called: Called) -> ProbeReport | None:
    answer = reward_probes.newest_answer(session, called)
    return None if answer is None else ProbeReport.model_validate(answer)


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
