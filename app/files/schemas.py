"""OpenAI's file object, with what the check of its rows found beside it."""

from enum import StrEnum
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from core.db.models import File
from core.ids import FileId
from core.rows import FileFormat, PromptKind


class FilePurpose(StrEnum):
    FINE_TUNE = "fine-tune"
    """A data set that jobs train or are judged on."""
    RESULTS = "fine-tune-results"
    """What a finished job handed back."""


class FileObject(BaseModel):
    model_config = ConfigDict(frozen=True)

    id: FileId
    object: Literal["file"] = "file"
    bytes: int
    created_at: int = Field(description="Unix seconds.")
    filename: str
    purpose: FilePurpose
    status: Literal["processed"] = Field("processed", description="A file exists only after every row was checked.")
    expires_at: None = Field(None, description="Files are kept until they are deleted.")
    sha256: str = Field(description="Of the content, in hex; also the ETag of the download.")
    format: FileFormat | None = Field(description="Unset for result files.")
    rows: int | None
    distinct_prompts: int | None = Field(description="Tasks, where rows with the same prompt count as one.")
    prompt_kind: PromptKind | None = Field(
        description="Of every row; a job's files have the same. Unset for result files and old data sets."
    )
    columns: list[str] = Field(description="What every row has beside the prompt: what rewards may read.")

    @classmethod
    def of(cls, file: File) -> Self:
        return cls(
            id=file.id,
            bytes=file.size_bytes,
            created_at=int(file.created_at.timestamp()),
            filename=file.filename,
            purpose=FilePurpose(file.purpose),
            sha256=file.sha256,
            format=FileFormat(file.format) if file.format else None,
            rows=file.rows,
            distinct_prompts=file.distinct_prompts,
            prompt_kind=PromptKind(file.prompt_kind) if file.prompt_kind else None,
            columns=file.columns,
        )


class FileDeleted(BaseModel):
    model_config = ConfigDict(frozen=True)

    id: FileId
    object: Literal["file"] = "file"
    deleted: Literal[True] = True
