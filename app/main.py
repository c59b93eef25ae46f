"""The HTTP API: `uvicorn --factory app.main:create_app`. It records and answers; it never trains."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from importlib.metadata import version

from fastapi import FastAPI

from app.artifacts.endpoints import router as artifacts
from app.bundle.endpoints import router as bundle
from app.diagnostics.endpoints import router as diagnostics
from app.documentation import router as documentation
from app.errors import install_error_handlers
from app.evaluations.endpoints import router as evaluations
from app.files.endpoints import router as files
from app.graders.endpoints import router as graders
from app.health.endpoints import router as health
from app.health.readiness import Readiness
from app.jobs.checkpoint_endpoints import router as checkpoints
from app.jobs.endpoints import router as jobs
from app.jobs.progress_endpoints import router as job_progress
from app.jobs.rescore import router as rescore
from app.learning.endpoints import router as learning
from app.models.endpoints import router as models
from app.request_context import RequestContext
from app.resources import open_resources
from app.rewards.builtins import router as builtin_rewards
from app.rewards.endpoints import router as rewards
from app.routing import operation_id
from app.signal_probes.endpoints import router as signal_probes
from core.logging import configure_logging
from core.settings import Settings, get_settings

DESCRIPTION = """\
GRPO training as a service: a base model, prompts and a reward function in; a LoRA adapter and an honest verdict out.

The paths and shapes are OpenAI's fine-tuning API, so that its clients work with another `base_url` and `api_key`; our
own fields stand beside. Every error has one envelope, names every problem at once, and says what to do about it.
Every create takes an `Idempotency-Key`. Ids sort by time; times are unix seconds.
"""
TAGS = [
    {"name": "files", "description": "Data sets in, result files out. Uploads are checked row by row."},
    {"name": "rewards", "description": "Reward functions: Python source in immutable versions."},
    {"name": "graders", "description": "Try a grader on one sample. It runs on the grading worker, never here."},
    {"name": "jobs", "description": "Training jobs: submit, branch, watch, pause, resume, cancel."},
    {"name": "signal probes", "description": "How much of a job would teach something, asked before it is paid for."},
    {"name": "artifacts", "description": "What a job made: adapter, results, checkpoints."},
    {"name": "models", "description": "Base models that jobs may name, and finished adapters."},
    {"name": "health", "description": "For load balancers and operators. No key is needed."},
]

ROUTERS = (
    files,
    builtin_rewards,
    rewards,
    graders,
    jobs,
    job_progress,
    rescore,
    checkpoints,
    diagnostics,
    evaluations,
    learning,
    signal_probes,
    artifacts,
    bundle,
    models,
    health,
    documentation,
)


def create_app(settings: Settings | None = None) -> FastAPI:
    settings = settings or get_settings()
    configure_logging(settings.log_format, settings.log_level)
    app = FastAPI(
        title="Podium",
        version=version("podium"),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        lifespan=_lifespan(settings),
        generate_unique_id_function=operation_id,
        docs_url=None,  # FastAPI's page loads its code from a CDN; /openapi.json is all that is needed
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(RequestContext)
    install_error_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    return app


def _lifespan(settings: Settings) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with open_resources(settings) as resources, closing(Readiness(resources)) as readiness:
            app.state.resources = resources
            app.state.readiness = readiness
            yield

    return lifespan
