"""Files that a job has made."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from core.db.models import Artifact


class ArtifactObject(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str = Field(description="Path under `.../artifacts/`.")
    object: Literal["fine_tuning.job.artifact"] = "fine_tuning.job.artifact"
    size_bytes: int
    sha256: str = Field(description="Hex; the ETag of the download.")
    content_type: str
    created_at: int
    attempt: int

    @classmethod
    def of(cls, artifact: Artifact) -> "ArtifactObject":
        return cls(
            name=artifact.name,
            size_bytes=artifact.size_bytes,
            sha256=artifact.sha256,
            content_type=artifact.content_type,
            created_at=int(artifact.created_at.timestamp()),
            attempt=artifact.attempt,
        )


class ArtifactList(BaseModel):
    """All of them: a job makes a few dozen at most."""

    model_config = ConfigDict(frozen=True)

    object: Literal["list"] = "list"
    data: list[ArtifactObject]
