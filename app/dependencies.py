"""What an endpoint may ask for, by name."""

from typing import Annotated, cast

from fastapi import Depends, Request

from app.graders.tasks import GradingTasks
from app.resources import Resources
from core.db.session import Sessions
from core.settings import Settings
from core.storage.store import ObjectStore


def resources_of(request: Request) -> Resources:
    return cast("Resources", request.app.state.resources)


ResourcesDep = Annotated[Resources, Depends(resources_of)]


def _settings(resources: ResourcesDep) -> Settings:
    return resources.settings


def _sessions(resources: ResourcesDep) -> Sessions:
    return resources.sessions


def _store(resources: ResourcesDep) -> ObjectStore:
    return resources.store


def _grading(resources: ResourcesDep) -> GradingTasks:
    return resources.grading


SettingsDep = Annotated[Settings, Depends(_settings)]
SessionsDep = Annotated[Sessions, Depends(_sessions)]
"""`with sessions.begin() as session:` is one transaction."""
StoreDep = Annotated[ObjectStore, Depends(_store)]
GradingDep = Annotated[GradingTasks, Depends(_grading)]
"""Reward code is run elsewhere: `app.graders.tasks`."""
