"""Where a job's metrics are to go, as OpenAI's clients write it."""

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from core.errors import InvalidRequest, Problem
from core.integrations import Integration
from core.settings import ExportTarget, Settings


class IntegrationNotOffered(InvalidRequest):
    """The operator of this server does not let jobs send their metrics there."""

    code = "integration_not_offered"


def _one_of_each(integrations: tuple[Integration, ...] | None) -> tuple[Integration, ...] | None:
    types = [integration.type for integration in integrations or ()]
    twice = next((name for name in types if types.count(name) > 1), None)
    if twice is not None:
        fix = "Keep one of them."
        raise PydanticCustomError(
            "same_integration", "`{name}` is there more than once", {"name": twice.value, "fix": fix}
        )
    return integrations


Integrations = Annotated[
    Annotated[tuple[Integration, ...], Field(max_length=len(ExportTarget))] | None, AfterValidator(_one_of_each)
]


def not_offered(settings: Settings, integrations: Sequence[Integration] | None) -> Iterator[Problem]:
    offered = ", ".join(f"`{name}`" for name in settings.integrations) or "none"
    for number, integration in enumerate(integrations or ()):
        if integration.type not in settings.integrations:
            message = f"`{integration.type}` is not offered here; these are: {offered}"
            fix = (
                "Leave it out, or ask the operator to add it to PODIUM_INTEGRATIONS. GET .../metrics has every number."
            )
            yield Problem(f"integrations[{number}].type", message, IntegrationNotOffered.code, fix)
