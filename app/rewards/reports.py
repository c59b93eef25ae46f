"""Reports on rewards: every version is probed in the transaction that adds it, and on each data set that it meets.

The answer of the probe's task is the report. Whoever causes a probe waits a little; the others ask later.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic
from typing import Annotated, Literal, Self

from fastapi import Depends
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from app.dependencies import GradingDep, SessionsDep, SettingsDep
from app.graders.tasks import GradingBusy, GradingTasks
from core.db import reward_probes
from core.db.models import GradingTask, RewardVersion
from core.db.reward_probes import Called
from core.db.session import Sessions
from core.grading_tasks import GradingTaskStatus, ProbeReward
from core.ids import FileId, RewardId, RewardVersionId, TenantId
from core.reward_report import ProbeReport


class ReportStatus(StrEnum):
    PENDING = "pending"
    """The grading worker has not answered yet."""
    DONE = "done"
    FAILED = "failed"
    """The probe itself failed; the next dry run, or the same upload again, starts another one."""


class ReportError(BaseModel):
    model_config = ConfigDict(frozen=True)

    code: str
    message: str
    fix: str | None = None


class ReportFacts(BaseModel):
    """The report, or why there is none."""

    model_config = ConfigDict(frozen=True)

    report_status: ReportStatus
    report: ProbeReport | None = Field(None, description="What the probe found; null until it is done.")
    report_error: ReportError | None = None

    @classmethod
    def of(cls, task: GradingTask) -> Self:
        if task.answer is not None:
            return cls(report_status=ReportStatus.DONE, report=ProbeReport.model_validate(task.answer))
        if task.status is GradingTaskStatus.FAILED:
            return cls(report_status=ReportStatus.FAILED, report_error=ReportError.model_validate(task.error))
        return cls(report_status=ReportStatus.PENDING)


class RewardReport(ReportFacts):
    object: Literal["reward.report"] = "reward.report"
    reward_id: RewardId
    version: int
    version_id: RewardVersionId
    training_file: FileId | None = Field(description="The data set whose rows were used; null: rows were made up.")
    created_at: int = Field(description="Unix seconds.")

    @classmethod
    def about(cls, version: RewardVersion, task: GradingTask) -> Self:
        return cls(
            reward_id=version.reward_id,
            version=version.version,
            version_id=version.id,
            training_file=ProbeReward.model_validate(task.request).file_id,
            created_at=int(task.created_at.timestamp()),
            **dict(ReportFacts.of(task)),
        )


def ask(session: Session, tenant_id: TenantId, called: Called, file_id: FileId | None) -> GradingTask:
    """The probe of the version on the data set; a new one where there is none, or where it failed.

    And where its report says that the reward does not load: the packages may be there by now, or it was the machine.
    """
    task = reward_probes.find(session, called, file_id)
    facts = None if task is None else ReportFacts.of(task)
    is_of_use = facts is not None and facts.report_status is not ReportStatus.FAILED
    if task is None or facts is None or not is_of_use or (facts.report is not None and not facts.report.loads):
        return reward_probes.add(session, tenant_id=tenant_id, called=called, file_id=file_id)
    return task


@dataclass(frozen=True, slots=True)
class Reports:
    """Probes that somebody waits for a little."""

    sessions: Sessions
    grading: GradingTasks
    wait_s: float

    def wait(self, tasks: Sequence[GradingTask]) -> list[GradingTask]:
        """The committed tasks as they are once all have ended, or after `wait_s`."""
        waiting = [task for task in tasks if not task.status.is_final]
        for task in waiting:
            if not self.grading.hint(task.id):
                break  # the broker is away, and each try would take as long; the dispatcher sends all of them
        deadline = monotonic() + self.wait_s
        ended = {task.id: self._wait(task, deadline) for task in waiting}
        return [ended.get(task.id, task) for task in tasks]

    def added_to(self, answer: JSONResponse, file_id: FileId | None) -> JSONResponse:
        """The reply about a version, with its report as it is by now: a repeated request may know more."""
        body = json.loads(bytes(answer.body))
        with self.sessions() as session:
            task = reward_probes.find(session, Called(body["version_id"]), file_id)
        if task is not None:
            (task,) = self.wait([task])
            body |= ReportFacts.of(task).model_dump(mode="json")
        replayed = {name: value for name, value in answer.headers.items() if name == "idempotent-replayed"}
        return JSONResponse(body, answer.status_code, replayed)

    def _wait(self, task: GradingTask, deadline: float) -> GradingTask:
        try:
            return self.grading.wait(task.id, within_s=max(0.0, deadline - monotonic())) or task
        except GradingBusy:
            return task


def _reports(sessions: SessionsDep, grading: GradingDep, settings: SettingsDep) -> Reports:
    return Reports(sessions, grading, settings.report_wait_s)


ReportsDep = Annotated[Reports, Depends(_reports)]
