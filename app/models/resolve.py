"""From the model that a client names to the one that will run: found, allowed, and pinned."""

import difflib
import re

from app.models import hub
from app.models.local import LocalModel, read_local_model
from app.models.names import FINE_TUNED_PREFIX, split_reference
from core.errors import ModelNotAllowed, ModelNotFound
from core.settings import Settings
from core.spec import ModelRef, ModelSource

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,254}")


def resolve_model(settings: Settings, reference: str) -> ModelRef:
    """`name` or `name@revision`, pinned. The operator's own models come before the Hub's.

    Raises `ModelNotFound`, `ModelNotAllowed` or `ModelHubUnreachable`. May read disks and the network: never call it
    inside a transaction.
    """
    name, revision = split_reference(reference)
    if name in settings.models:
        return _pin_local(read_local_model(name, settings.models[name]), revision)
    if name.startswith(FINE_TUNED_PREFIX):
        message = f"{reference[:120]!r} is not the name of a model that a job made."
        fix = "Copy `fine_tuned_model` of a finished job, or `fine_tuned_model_checkpoint` of one of its checkpoints."
        raise ModelNotFound(message, param="model", fix=fix)
    if not _HUB_ID.fullmatch(name) or (revision and not _REVISION.fullmatch(revision)):
        message = f"{reference[:120]!r} is not a model: write `name`, `organisation/name` or `name@revision`."
        raise ModelNotFound(message, param="model", fix=_nearest(settings, name))
    if not settings.allow_hub_models:
        message = f"There is no model {name!r} on this server, and its operator does not allow models of the Hub."
        raise ModelNotAllowed(message, param="model", fix=_nearest(settings, name) or ModelNotFound.default_fix)
    try:
        return hub.pin(name, revision)
    except ModelNotFound as error:
        raise ModelNotFound(error.message, param="model", fix=_nearest(settings, name) or error.fix) from None


def _pin_local(model: LocalModel, revision: str | None) -> ModelRef:
    if revision not in {None, model.revision}:
        message = f"The model {model.name!r} of this server is at revision {model.revision}, not {revision!r}."
        raise ModelNotFound(message, param="model", fix=f"Write `{model.name}` or `{model.name}@{model.revision}`.")
    return ModelRef(name=model.name, source=ModelSource.LOCAL, revision=model.revision)


def _nearest(settings: Settings, name: str) -> str | None:
    """Did you mean: only where a local name is near; by its last part too, where the organisation is forgotten."""
    by_key = {key.lower(): known for known in settings.models for key in (known, known.rpartition("/")[2])}
    near = difflib.get_close_matches(name.lower()[:128], by_key, n=1, cutoff=0.6)
    return f"Did you mean `{by_key[near[0]]}`? GET /v1/models lists the models of this server." if near else None
