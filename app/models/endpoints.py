"""`/v1/models`: base models that jobs may name, and finished adapters."""

from typing import Annotated

from fastapi import Path

from app.auth import CallerDep
from app.dependencies import SessionsDep, SettingsDep
from app.errors import error_responses
from app.models import service
from app.models.schemas import ModelList, ModelObject
from app.routing import resource_router

router = resource_router("/v1/models", tag="models")


@router.get("", summary="List models")
def list_models(sessions: SessionsDep, settings: SettingsDep, caller: CallerDep) -> ModelList:
    """The operator's base models, then what your jobs have trained, newest first."""
    return ModelList(data=service.list_models(sessions, settings, caller.tenant_id))


@router.get("/{model_id:path}", summary="Get a model", responses=error_responses(404))
def get_model(
    sessions: SessionsDep,
    settings: SettingsDep,
    caller: CallerDep,
    model_id: Annotated[str, Path(description="`name`, or `ft:...` of a finished job; may contain slashes.")],
) -> ModelObject:
    """A base model that the operator registered, or what one of your jobs has trained."""
    return service.get_model(sessions, settings, caller.tenant_id, model_id)
