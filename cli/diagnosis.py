"""How the answers about a job's standing read in a terminal."""

import json
import time
from collections.abc import Iterator

from cli.client import DiagnosticsView, FindingView, JobView, LearningFindingView, StepAgeView


def after_pause(job: JobView) -> str:
    durable = job.progress.durable_step if job.progress else None
    safe = f"step {durable} is safe" if durable else "no step is durable yet"
    if job.status == "paused":
        return f"{job.id} is paused; {safe}."
    return f"{job.id} is {job.status}, and pauses when its trainer has ended its step and saved; {safe}."


def diagnosis_lines(report: DiagnosticsView) -> Iterator[str]:
    reason = f" ({report.status_reason})" if report.status_reason else ""
    yield f"{report.job_id}  {report.status}{reason}"
    yield f"now       {report.now.summary}"
    if report.run is not None:
        state = "stands" if report.run.lease.stands else "has run out"
        stage = f", stage {report.run.stage}" if report.run.stage else ""
        good_at = time.strftime("%H:%M:%S", time.localtime(report.run.lease.last_good_at))
        yield f"run       attempt {report.run.attempt}{stage}; its lease {state}, last known good at {good_at}"
    yield f"newest    {_step(report.newest_step, 'no step yet')}"
    yield f"durable   {_step(report.durable_step, 'no checkpoint yet')}; {report.steps_at_risk} steps at risk"
    for finding in report.findings:
        yield from _finding_lines(finding)
    for learned in report.learning:
        yield from _learning_lines(learned)


def _step(step: StepAgeView | None, none: str) -> str:
    return none if step is None else f"step {step.step}, {step.age_s:.0f} s ago"


def _finding_lines(finding: FindingView) -> Iterator[str]:
    often = f", {finding.count} times" if finding.count > 1 else ""
    last = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(finding.last_seen))
    yield ""
    yield f"{finding.severity}  {finding.code}{often}, last seen {last}"
    yield f"  {finding.message}"
    yield f"  evidence: {json.dumps(finding.evidence)}"
    yield f"  fix: {finding.fix}"


def _learning_lines(finding: LearningFindingView) -> Iterator[str]:
    since = f", since step {finding.since_step}" if finding.since_step is not None else ""
    yield ""
    yield f"{finding.severity}  {finding.code}{since}"
    yield f"  {finding.message}"
    yield f"  evidence: {json.dumps(finding.evidence)}"
    if finding.links is not None:
        yield f"  look at: GET {finding.links.rollouts} and {finding.links.metrics}"
    yield f"  fix: {finding.fix}"
    yield f"  next: {finding.try_next}"
