"""OpenAI's model object, with what is known of ours beside it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from app.models.local import LocalModel
from app.models.names import fine_tuned_model
from core.db.models import Job
from core.spec import JobSpec


class ModelObject(BaseModel):
    model_config = ConfigDict(frozen=True)

    id: str = Field(description="What a job's `model` may say; for a trained model, its name.")
    object: Literal["model"] = "model"
    created: int
    owned_by: str = Field(description="`operator` for base models, else the tenant that trained it.")

    revision: str | None = Field(description="Of a base model: the digest that pins its files.")
    base_model: str | None = Field(description="What a trained model was trained from.")
    job_id: str | None = Field(description="The job that trained it; its adapter is under `/adapter` there.")

    @classmethod
    def of_base(cls, model: LocalModel) -> "ModelObject":
        return cls(
            id=model.name,
            created=model.created_at,
            owned_by="operator",
            revision=model.revision,
            base_model=None,
            job_id=None,
        )

    @classmethod
    def of_job(cls, job: Job) -> "ModelObject":
        base = JobSpec.model_validate(job.spec).model
        return cls(
            id=fine_tuned_model(job.model, job.suffix, job.id),
            created=int((job.finished_at or job.created_at).timestamp()),
            owned_by=job.tenant_id,
            revision=None,
            base_model=f"{base.name}@{base.revision}",
            job_id=job.id,
        )


class ModelList(BaseModel):
    model_config = ConfigDict(frozen=True)

    object: Literal["list"] = "list"
    data: list[ModelObject]
