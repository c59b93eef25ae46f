"""What the ledger knows of the things that a job names: files and rewards of the caller, each missing one a problem."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from app.jobs.branch import BranchPoint
from app.jobs.graders import AnyGrader, MultiGrader, PythonGrader, SimpleGrader
from app.jobs.plan import Plan
from app.jobs.schemas import JobCreate
from app.jobs.terms import AnyTerm, BuiltinTerm, UploadedTerm
from core.builtin_rewards.catalogue import AnyBuiltin
from core.db import files, rewards
from core.db.models import File, RewardVersion
from core.errors import InvalidReward, Problem
from core.ids import FileId, RewardId, RewardVersionId, TenantId
from core.reward_source import RewardEntry, RewardForm, analyse
from core.spec import Gate

DATASET_PURPOSE = "fine-tune"

_ENTRY = TypeAdapter(RewardEntry)


@dataclass(frozen=True, slots=True)
class KnownReward:
    name: str
    """As asked for, or the reward's own; not yet unique in the job."""
    weight: float
    field: str
    """Path of the term in the body."""
    entry: RewardEntry
    source_sha256: str
    reward_id: RewardId | None = None
    version_id: RewardVersionId | None = None
    inline_source: str | None = None
    """Of a grader that came inside the body; it is kept with the job."""
    gate: Gate | None = None


@dataclass(frozen=True, slots=True)
class KnownBuiltin:
    name: str
    weight: float
    field: str
    parameters: AnyBuiltin
    gate: Gate | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    training: File | None
    held_out: File | None
    rewards: tuple[KnownReward | KnownBuiltin, ...]
    start: BranchPoint | None = None
    """The checkpoint that `model` names, where it names one."""
    problems: list[Problem] = field(default_factory=list)
    """Of everything that is not there. Foreign and missing things look the same."""


def gather(
    session: Session, tenant_id: TenantId, body: JobCreate, plan: Plan, start: BranchPoint | Problem | None
) -> Facts:
    """`start` is what `branch.find` says of the model."""
    problems = [start] if isinstance(start, Problem) else []
    training = known_dataset(session, tenant_id, "training_file", body.training_file, problems)
    held_out = None
    if body.validation_file is not None:
        held_out = known_dataset(session, tenant_id, "validation_file", body.validation_file, problems)
    if isinstance(plan.rewards, tuple):
        found = tuple(known_terms(session, tenant_id, plan.rewards, f"{plan.field}.rewards", problems))
    else:
        found = tuple(known_graders(plan.rewards, f"{plan.field}.grader", problems))
    return Facts(training, held_out, found, start if isinstance(start, BranchPoint) else None, problems)


def known_dataset(
    session: Session, tenant_id: TenantId, name: str, file_id: FileId, problems: list[Problem]
) -> File | None:
    """The caller's data set that the field `name` names; None, and a problem, when there is none."""
    file = files.get_owned(session, tenant_id, file_id)
    if file is None:
        fix = "Upload the file with POST /v1/files, or list yours with GET /v1/files."
        problems.append(Problem(name, f"there is no file {file_id[:64]!r}", "file_not_found", fix))
        return None
    if file.purpose != DATASET_PURPOSE or file.format is None or file.rows is None:
        message = f"the file's purpose is `{file.purpose}`, not `{DATASET_PURPOSE}`"
        fix = f"Upload a data set with purpose `{DATASET_PURPOSE}`."
        problems.append(Problem(name, message, "wrong_purpose", fix))
        return None
    return file


def known_terms(
    session: Session, tenant_id: TenantId, terms: tuple[AnyTerm, ...], path: str, problems: list[Problem]
) -> Iterator[KnownReward | KnownBuiltin]:
    """The terms that are there; the others become `problems`."""
    for number, term in enumerate(terms):
        place = f"{path}[{number}]"
        if isinstance(term, BuiltinTerm):
            yield KnownBuiltin(term.name or term.builtin_name, term.weight, place, term.parameters, term.gate)
            continue
        found = _uploaded(session, tenant_id, term, place)
        if isinstance(found, Problem):
            problems.append(found)
        else:
            yield found


def _uploaded(session: Session, tenant_id: TenantId, term: UploadedTerm, place: str) -> KnownReward | Problem:
    reward = rewards.get_owned(session, tenant_id, term.reward)
    if reward is None:
        fix = "Upload the reward with POST /v1/rewards, or list yours with GET /v1/rewards."
        return Problem(f"{place}.reward", f"there is no reward {term.reward[:64]!r}", "reward_not_found", fix)
    version = rewards.newest(session, reward.id, number=term.version)
    if version is None:
        message = f"the reward {reward.name!r} has no version {term.version}"
        return Problem(f"{place}.version", message, "reward_not_found", "Leave `version` out for the newest one.")
    entry = _entry(version, term, place)
    if isinstance(entry, Problem):
        return entry
    return KnownReward(
        name=term.name or reward.name,
        weight=term.weight,
        field=place,
        entry=entry,
        source_sha256=version.sha256,
        reward_id=reward.id,
        version_id=version.id,
        gate=term.gate,
    )


def _entry(version: RewardVersion, term: UploadedTerm, place: str) -> RewardEntry | Problem:
    """As it was found at the upload, or in the form that the job asks for."""
    entry = _ENTRY.validate_python(version.entry)
    if term.form is None or term.form is entry.form:
        return entry
    try:
        return analyse(version.source, entry_point=entry.name, form=term.form)
    except InvalidReward as error:
        first = error.problems[0]
        return Problem(f"{place}.form", first.message, first.code, first.fix)


def known_graders(
    grader: AnyGrader, path: str, problems: list[Problem], *, any_form: bool = False
) -> Iterator[KnownReward | KnownBuiltin]:
    """One term; for a multi grader one of weight 0 for each that it reads, and the formula, which counts alone.

    `any_form`: whether a python grader may be in another form than OpenAI's.
    """
    if not isinstance(grader, MultiGrader):
        yield from _grader(grader, grader.name, 1.0, path, problems, any_form=any_form)
        return
    for key, one in grader.graders.items():
        yield from _grader(one, key, 0.0, f"{path}.graders.{key}", problems, any_form=any_form)
    yield KnownBuiltin(grader.name, 1.0, f"{path}.calculate_output", grader.builtin)


def _grader(
    grader: SimpleGrader, name: str, weight: float, path: str, problems: list[Problem], *, any_form: bool
) -> Iterator[KnownReward | KnownBuiltin]:
    if not isinstance(grader, PythonGrader):
        yield KnownBuiltin(name, weight, path, grader.builtin)
        return
    entry = _inline(grader, path, any_form=any_form)
    if isinstance(entry, list):
        problems += entry
        return
    digest = hashlib.sha256(grader.source.encode()).hexdigest()
    yield KnownReward(name, weight, path, entry, digest, inline_source=grader.source)


def _inline(grader: PythonGrader, path: str, *, any_form: bool) -> RewardEntry | list[Problem]:
    try:
        entry = analyse(grader.source, entry_point=None if any_form else "grade")
    except InvalidReward as error:
        return [Problem(f"{path}.source", p.message, p.code, p.fix) for p in error.problems]
    if entry.form is not RewardForm.OPENAI and not any_form:
        message = "`grade` must take the parameters `sample` and `item`"
        fix = "Define `def grade(sample, item) -> float`."
        return [Problem(f"{path}.source", message, "no_entry_point", fix)]
    return entry
