"""Reward functions as clients see them: a name, and immutable versions of its source."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter

from app.rewards.reports import ReportError, ReportStatus
from core.db.models import Reward, RewardVersion
from core.ids import FileId, RewardId, RewardVersionId
from core.reward_report import ProbeReport
from core.reward_source import FORMS, RewardEntry, RewardForm

MAX_NAME_LENGTH = 64
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+$", min_length=1, max_length=MAX_NAME_LENGTH)]
EntryPoint = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_ENTRY = TypeAdapter(RewardEntry)
_FORMS = ", ".join(f"`{rule.signature}`" for rule in FORMS.values())


class RewardVersionCreate(BaseModel):
    """The next version of a reward."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = Field(
        description=f"A Python module with a function in one of the forms {_FORMS}.",
        examples=["def reward(completion, answer):\n    return float(answer in completion)\n"],
    )
    entry_point: EntryPoint | None = Field(None, description="The function to call; unset: found by name and form.")
    form: RewardForm | None = Field(
        None, description="How the function is called; unset: told by the names of its parameters."
    )
    training_file: FileId | None = Field(
        None, description="A data set of yours whose first rows the reward is probed with; unset: rows are made up."
    )


class RewardCreate(RewardVersionCreate):
    """A new reward, with its first version."""

    name: Name = Field(description="How metrics and job specs call it.", examples=["exact_match"])


class RewardColumns(BaseModel):
    """Which columns of the data set the source reads."""

    model_config = ConfigDict(frozen=True)

    required: list[str]
    optional: list[str]
    takes_any: bool = Field(description="Whether every column reaches it (`**kwargs`, or OpenAI's `item`).")


class VersionFacts(BaseModel):
    """What is known of one version of the source."""

    model_config = ConfigDict(frozen=True)

    version: int = Field(description="1, 2, 3, ...")
    version_id: RewardVersionId
    sha256: str = Field(description="Of the source in UTF-8, in hex.")
    entry_point: str
    form: RewardForm
    columns: RewardColumns


class RewardVersionObject(VersionFacts):
    object: Literal["reward.version"] = "reward.version"
    id: RewardVersionId
    reward_id: RewardId
    created_at: int = Field(description="Unix seconds.")

    @classmethod
    def of(cls, version: RewardVersion) -> Self:
        return cls(
            id=version.id,
            reward_id=version.reward_id,
            created_at=int(version.created_at.timestamp()),
            **dict(facts_of(version)),
        )


class RewardVersionSource(RewardVersionObject):
    """A version with its source."""

    source: str

    @classmethod
    def of(cls, version: RewardVersion) -> Self:
        return cls(source=version.source, **dict(RewardVersionObject.of(version)))


class RewardObject(VersionFacts):
    """A reward; `version` and what follows it describe the newest version."""

    id: RewardId
    object: Literal["reward"] = "reward"
    name: str
    created_at: int = Field(description="Unix seconds.")

    @classmethod
    def of(cls, reward: Reward, newest: RewardVersion) -> Self:
        return cls(
            id=reward.id,
            name=reward.name,
            created_at=int(reward.created_at.timestamp()),
            **dict(facts_of(newest)),
        )


class ReportFields(BaseModel):
    """Of the probe that was begun with the version."""

    report_status: ReportStatus | None = Field(None, description="`pending` until the grading worker has answered.")
    report: ProbeReport | None = None
    report_error: ReportError | None = None


class RewardCreated(RewardObject, ReportFields):
    """A new reward, with the report on its first version if that came in time."""


class RewardVersionCreated(RewardVersionObject, ReportFields):
    """A version, with the report on it if that came in time."""


class RewardDetail(RewardObject):
    """A reward with all of its versions."""

    versions: list[RewardVersionObject] = Field(description="Newest first.")


def facts_of(version: RewardVersion) -> VersionFacts:
    entry = _ENTRY.validate_python(version.entry)
    return VersionFacts(
        version=version.version,
        version_id=version.id,
        sha256=version.sha256,
        entry_point=entry.name,
        form=entry.form,
        columns=RewardColumns(
            required=list(entry.columns), optional=list(entry.optional_columns), takes_any=entry.takes_any
        ),
    )
