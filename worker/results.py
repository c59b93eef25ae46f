"""From the run's facts to `results.json`. Pure: everything it says was handed to it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from core import verdict
from core.db.models import Job, JobAttempt
from core.learning.finding import LearningFinding, Severity
from core.results import (
    ArtifactFacts,
    AttemptFacts,
    Cost,
    DataFacts,
    Diagnostics,
    Evaluation,
    FindingFacts,
    JobFacts,
    JobResults,
    ModelFacts,
    Parameters,
    ResumeAuditFacts,
    RewardFacts,
    Tokens,
)
from core.spec import JobSpec
from core.taught import Taught
from worker.run_directory import Summary

NEARLY_SILENT = 0.9


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """What the ledger and the store know of a run that has just ended."""

    job: Job
    attempts: Sequence[JobAttempt]
    evaluations: Mapping[str, Evaluation]
    artifacts: Sequence[ArtifactFacts]
    now: datetime
    held_seconds: float
    redone_steps: int
    findings: Sequence[LearningFinding] = ()
    """What rules say of the run's own numbers, the gravest first."""
    taught: Taught | None = None


def build(spec: JobSpec, summary: Summary, facts: LedgerFacts, *, usd_per_hour: float) -> JobResults:
    scores = {name: verdict.score(name, evaluation) for name, evaluation in facts.evaluations.items()}
    return JobResults(
        job=_job(facts),
        model=_model(spec, facts),
        data=_data(spec, summary),
        rewards=_rewards(spec),
        seed=spec.seed,
        parameters=_parameters(spec, summary),
        baseline=scores["baseline"],
        final=scores["final"],
        best=scores[_best(facts.evaluations, spec)],
        evaluations=tuple(sorted(scores.values(), key=lambda item: (item.step, item.name == "final"))),
        verdict=verdict.judge(
            facts.evaluations["baseline"],
            facts.evaluations["final"],
            decoding=spec.evaluation.decoding,
            seed=spec.seed,
            why=_why(facts.findings, summary.silent_share),
        ),
        diagnostics=_diagnostics(summary, facts),
        time=summary.phases,
        tokens=Tokens(
            generated=summary.generated_tokens, left_out=summary.left_out_tokens, trained=summary.trained_tokens
        ),
        cost=_cost(facts, spec.resources.gpus, usd_per_hour),
        attempts=_attempts(facts),
        preemptions=facts.job.preemptions,
        environment=summary.environment,
        artifacts=tuple(facts.artifacts),
    )


def _diagnostics(summary: Summary, facts: LedgerFacts) -> Diagnostics:
    return Diagnostics(
        silent_share=summary.silent_share,
        steps_without_gradient=summary.steps_without_gradient,
        truncated_share=summary.truncated_share,
        ungraded_rollouts=summary.ungraded_rollouts,
        left_out_rollouts=summary.left_out_rollouts,
        ended_early=summary.ended_early,
        findings=tuple(_finding(finding) for finding in facts.findings),
        taught=facts.taught,
    )


def _cost(facts: LedgerFacts, gpus: int, usd_per_hour: float) -> Cost:
    seconds = facts.held_seconds * gpus
    return Cost(
        gpu_seconds=round(seconds, 3),
        usd_per_hour=usd_per_hour,
        usd=round(seconds / 3600 * usd_per_hour, 6),
        redone_steps=facts.redone_steps,
    )


def _why(findings: Sequence[LearningFinding], silent_share: float | None) -> str | None:
    """The gravest finding that is no mere remark; else the silence of the groups, where it was nearly complete."""
    grave = next((finding for finding in findings if finding.severity is not Severity.INFO), None)
    if grave is not None:
        return grave.sentence
    if silent_share is None or silent_share < NEARLY_SILENT:
        return None
    return f"In {silent_share:.0%} of the groups all rewards were equal, so there was next to nothing to learn from."


def _finding(finding: LearningFinding) -> FindingFacts:
    return FindingFacts(
        code=finding.code,
        subject=finding.subject,
        severity=finding.severity.value,
        sentence=finding.sentence,
        fix=finding.fix,
        try_next=finding.try_next,
        since_step=finding.since_step,
        evidence=finding.evidence,
    )


def _job(facts: LedgerFacts) -> JobFacts:
    job = facts.job
    return JobFacts(
        id=job.id,
        created_at=int(job.created_at.timestamp()),
        started_at=int((job.started_at or job.created_at).timestamp()),
        finished_at=int(facts.now.timestamp()),
        suffix=job.suffix,
        metadata=job.metadata_,
    )


def _model(spec: JobSpec, facts: LedgerFacts) -> ModelFacts:
    return ModelFacts(
        base=spec.model.name,
        revision=spec.model.revision,
        method=spec.adapter.method.value,
        adapter_sha256=_weights_digest(facts.artifacts),
    )


def _data(spec: JobSpec, summary: Summary) -> DataFacts:
    held_out = spec.held_out
    return DataFacts(
        training_file=spec.training.file_id,
        training_sha256=spec.training.sha256,
        training_rows=summary.train_rows,
        held_out_file=held_out.file_id if held_out else None,
        held_out_sha256=held_out.sha256 if held_out else None,
        held_out_rows=summary.held_out_rows,
        overlap_rows=summary.overlap_rows,
    )


def _rewards(spec: JobSpec) -> tuple[RewardFacts, ...]:
    return tuple(
        RewardFacts(
            name=term.name,
            weight=term.weight,
            form=term.form,
            source_sha256=term.source_sha256,
            reward_id=term.reward_id,
            version_id=term.version_id,
        )
        for term in spec.rewards
    )


def _parameters(spec: JobSpec, summary: Summary) -> Parameters:
    both = {"spec": spec.model_dump(mode="json"), "trainer": summary.resolved_parameters}
    canonical = json.dumps(both, sort_keys=True, separators=(",", ":"))
    return Parameters(**both, sha256=hashlib.sha256(canonical.encode()).hexdigest())


def _attempts(facts: LedgerFacts) -> tuple[AttemptFacts, ...]:
    """The attempt that writes this is still open: it ends with this document."""
    return tuple(
        AttemptFacts(
            attempt=attempt.attempt,
            started_at=int(attempt.started_at.timestamp()),
            ended_at=int((attempt.ended_at or facts.now).timestamp()),
            resumed_from_step=attempt.resumed_from_step,
            last_step=attempt.last_step,
            ended=attempt.ended or "succeeded",
            resume_audit=_audit(attempt),
        )
        for attempt in facts.attempts
    )


def _audit(attempt: JobAttempt) -> ResumeAuditFacts | None:
    report = attempt.resume_audit
    if report is None:
        return None
    return ResumeAuditFacts(**{name: report[name] for name in ResumeAuditFacts.model_fields})


def _best(evaluations: Mapping[str, Evaluation], spec: JobSpec) -> str:
    """Where none can be ranked: the first."""
    decoding, most = spec.evaluation.decoding, spec.grading.max_error_share
    return verdict.best(evaluations, decoding=decoding, max_error_share=most) or next(iter(evaluations))


def _weights_digest(artifacts: Sequence[ArtifactFacts]) -> str:
    """The digest of the weights file, or of the shards' digests in order of their names."""
    weights = [artifact for artifact in artifacts if artifact.name.endswith(".safetensors")]
    if len(weights) == 1:
        return weights[0].sha256
    return hashlib.sha256("".join(artifact.sha256 for artifact in weights).encode()).hexdigest()
