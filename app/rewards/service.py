"""Reward functions: the source is read, never run, and every change is a new version that jobs can be pinned to."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from app.auth import Caller
from app.idempotency import Idempotency
from app.jobs.checks import refusal
from app.jobs.facts import known_dataset
from app.paging import Page
from app.rewards.reports import Reports, RewardReport, ask
from app.rewards.schemas import (
    MAX_NAME_LENGTH,
    RewardCreate,
    RewardCreated,
    RewardDetail,
    RewardObject,
    RewardVersionCreate,
    RewardVersionCreated,
    RewardVersionObject,
)
from app.uploads import Upload
from app.validation import parse
from core.db import reward_probes, rewards
from core.db.models import Reward, RewardVersion
from core.db.reward_probes import Called
from core.db.session import Sessions
from core.errors import NotFound, Problem
from core.ids import FileId, RewardId
from core.reward_source import analyse, decode_source

VERSION_FIELDS = ("entry_point", "form", "training_file")
"""What may stand beside the source."""


class RewardNotFound(NotFound):
    code = "reward_not_found"
    default_fix = "Check the id; GET /v1/rewards lists your rewards."


class RewardVersionNotFound(NotFound):
    code = "reward_version_not_found"
    default_fix = "GET /v1/rewards/{id} lists the versions of a reward."


class ReportNotFound(NotFound):
    """The version was never probed, or not on this data set."""

    code = "report_not_found"
    default_fix = "Send the same source to POST /v1/rewards/{id}/versions again, with `training_file`: it is probed."


def create(reports: Reports, caller: Caller, once: Idempotency, wanted: RewardCreate) -> JSONResponse:
    draft, once = _Draft.of(wanted), once.about(wanted.model_dump_json())
    with reports.sessions.begin() as session:
        answer = once.first_answer(session)
        if answer is None:
            reward = rewards.add(session, tenant_id=caller.tenant_id, name=wanted.name)
            version = draft.add_to(session, reward.id)
            _probe(session, caller, version, wanted)
            answer = once.answer(session, 201, RewardCreated.of(reward, version))
    return reports.added_to(answer, wanted.training_file)


def add_version(
    reports: Reports, caller: Caller, once: Idempotency, reward_id: RewardId, wanted: RewardVersionCreate
) -> JSONResponse:
    """The next version; the newest one again (200) when nothing changed."""
    draft, once = _Draft.of(wanted), once.about(wanted.model_dump_json())
    with reports.sessions.begin() as session:
        answer = once.first_answer(session)
        if answer is None:
            version, is_new = draft.added_or_newest(session, _owned(session, caller, reward_id).id)
            _probe(session, caller, version, wanted)
            answer = once.answer(session, 201 if is_new else 200, RewardVersionCreated.of(version))
    return reports.added_to(answer, wanted.training_file)


def page(sessions: Sessions, caller: Caller, page: Page) -> Sequence[tuple[Reward, RewardVersion]]:
    """Each reward with its newest version."""
    after = RewardId(page.after) if page.after else None
    with sessions() as session:
        found = rewards.page(session, caller.tenant_id, after=after, limit=page.fetch)
        newest = rewards.newest_of(session, [reward.id for reward in found])
    return [(reward, newest[reward.id]) for reward in found]


def get(sessions: Sessions, caller: Caller, reward_id: RewardId) -> RewardDetail:
    with sessions() as session:
        reward = _owned(session, caller, reward_id)
        versions = rewards.versions(session, reward.id)
    shown = [RewardVersionObject.of(version) for version in versions]
    return RewardDetail(**dict(RewardObject.of(reward, versions[0])), versions=shown)


def get_version(sessions: Sessions, caller: Caller, reward_id: RewardId, number: int) -> RewardVersion:
    with sessions() as session:
        return _version(session, _owned(session, caller, reward_id), number)


def get_report(
    sessions: Sessions, caller: Caller, reward_id: RewardId, number: int | None, file_id: FileId | None
) -> RewardReport:
    """The newest report on the newest version, or on version `number`; with `file_id`, on that data set."""
    with sessions() as session:
        version = _version(session, _owned(session, caller, reward_id), number)
        if file_id is None:
            task = reward_probes.newest(session, Called(version.id))
        else:
            task = reward_probes.find(session, Called(version.id), file_id)
    if task is None:
        raise ReportNotFound("The version was not probed on this data set." if file_id else "There is no report.")
    return RewardReport.about(version, task)


def create_of_upload(upload: Upload) -> RewardCreate:
    """A form as the JSON body says it; the name is the file's if there is none."""
    name = upload.fields.get("name") or name_of_file(upload.filename)
    return parse(RewardCreate, {**_version_of_upload(upload), "name": name})


def version_of_upload(upload: Upload) -> RewardVersionCreate:
    return parse(RewardVersionCreate, _version_of_upload(upload))


def name_of_file(filename: str) -> str:
    """`my reward (2).py` as `my_reward_2`."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", Path(filename).stem).strip("_.")
    return stem[:MAX_NAME_LENGTH] or "reward"


@dataclass(frozen=True, slots=True)
class _Draft:
    """A version that is good to be added."""

    source: str
    sha256: str
    entry: dict[str, object]
    """`RewardEntry` as JSON."""

    @classmethod
    def of(cls, wanted: RewardVersionCreate) -> "_Draft":
        entry = analyse(wanted.source, entry_point=wanted.entry_point, form=wanted.form)
        digest = hashlib.sha256(wanted.source.encode()).hexdigest()
        return cls(wanted.source, digest, {**asdict(entry), "form": entry.form.value})

    def is_what(self, version: RewardVersion) -> bool:
        return version.sha256 == self.sha256 and all(version.entry[key] == self.entry[key] for key in ("name", "form"))

    def added_or_newest(self, session: Session, reward_id: RewardId) -> tuple[RewardVersion, bool]:
        """The next version, and whether it is one: what nothing changed in is the newest."""
        rewards.hold(session, reward_id)
        newest = rewards.newest(session, reward_id)
        if newest is not None and self.is_what(newest):
            return newest, False
        return self.add_to(session, reward_id), True

    def add_to(self, session: Session, reward_id: RewardId) -> RewardVersion:
        return rewards.add_version(session, reward_id, source=self.source, sha256=self.sha256, entry=self.entry)


def _owned(session: Session, caller: Caller, reward_id: RewardId) -> Reward:
    reward = rewards.get_owned(session, caller.tenant_id, reward_id)
    if reward is None:
        raise RewardNotFound("There is no such reward.", param="reward_id")
    return reward


def _version(session: Session, reward: Reward, number: int | None) -> RewardVersion:
    version = rewards.newest(session, reward.id, number=number)
    if version is None:
        raise RewardVersionNotFound("The reward has no such version.", param="version")
    return version


def _probe(session: Session, caller: Caller, version: RewardVersion, wanted: RewardVersionCreate) -> None:
    problems: list[Problem] = []
    if wanted.training_file is not None:
        known_dataset(session, caller.tenant_id, "training_file", wanted.training_file, problems)
    if problems:
        raise refusal(problems, subject="The probe")
    ask(session, caller.tenant_id, Called(version.id), wanted.training_file)


def _version_of_upload(upload: Upload) -> dict[str, str]:
    said = {name: upload.fields[name] for name in VERSION_FIELDS if upload.fields.get(name)}
    return {"source": decode_source(upload.path.read_bytes()), **said}
