"""`/healthz`, `/readyz`, `/version`: for load balancers and operators, without a key."""

import platform
from importlib.metadata import version
from typing import Annotated, Literal, cast

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.health.readiness import Finding, Readiness

router = APIRouter(tags=["health"])


class Alive(BaseModel):
    model_config = ConfigDict(frozen=True)

    status: Literal["ok"] = "ok"


class PartReport(BaseModel):
    model_config = ConfigDict(frozen=True)

    ok: bool
    took_s: float | None = Field(None, description="Seconds that the check took; null while it has not ended.")
    proved: tuple[str, ...] = Field(
        (),
        description="What the store's self-test has shown with real requests: `reads_back`; refused were a second"
        " create of a key (`conditional_create`), damaged bytes (`checksum`), a wrong secret (`signature`, S3 only).",
    )
    code: str | None = None
    message: str | None = None
    fix: str | None = None

    @classmethod
    def of(cls, finding: Finding) -> "PartReport":
        took_s = None if finding.took_s is None else round(finding.took_s, 4)
        trouble = finding.trouble
        if trouble is None:
            return cls(ok=True, took_s=took_s, proved=finding.proved)
        return cls(ok=False, took_s=took_s, code=trouble.code, message=trouble.message, fix=trouble.fix)


class ReadinessReport(BaseModel):
    model_config = ConfigDict(frozen=True)

    status: Literal["ready", "not_ready"]
    checks: dict[str, PartReport] = Field(description="`database`, `migrations`, `broker`, `store`.")


class VersionReport(BaseModel):
    model_config = ConfigDict(frozen=True)

    version: str
    python: str


def _readiness(request: Request) -> Readiness:
    return cast("Readiness", request.app.state.readiness)


@router.get("/healthz", summary="Is it alive")
def get_health() -> Alive:
    """The process answers; nothing else is asked."""
    return Alive()


@router.get(
    "/readyz",
    summary="Can it work",
    responses={503: {"model": ReadinessReport, "description": "A part is away; its `fix` says what to do."}},
)
def get_readiness(response: Response, readiness: Annotated[Readiness, Depends(_readiness)]) -> ReadinessReport:
    """Database, migrations, broker and object store, asked within 3 s. The store's answer is kept for 30 s."""
    checks = {name: PartReport.of(finding) for name, finding in readiness.findings().items()}
    is_ready = all(part.ok for part in checks.values())
    response.status_code = 200 if is_ready else 503
    return ReadinessReport(status="ready" if is_ready else "not_ready", checks=checks)


@router.get("/version", summary="Which version is it")
def get_version() -> VersionReport:
    """Of Podium, and of the Python that runs it."""
    return VersionReport(version=version("podium"), python=platform.python_version())
