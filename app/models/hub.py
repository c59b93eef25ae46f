"""Models on a hub (`HF_ENDPOINT`, huggingface.co unless set): pinned to a commit, and refused when unsafe to load.

Only metadata and two small JSON files are read here; the weights are downloaded by the trainer, at that commit.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import structlog
from huggingface_hub import HfApi, ModelInfo, get_session, get_token, hf_hub_url, hf_raise_for_status
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from app.models.local import (
    CONFIGS,
    PICKLES,
    custom_code_refused,
    no_weights_refused,
    only_pickles_refused,
    wants_custom_code,
)
from core.errors import ModelNotAllowed, ModelNotFound, Unavailable
from core.spec import ModelRef, ModelSource

TIMEOUT_S = 10.0
MAX_CONFIG_BYTES = 16 * 1024 * 1024

log = structlog.get_logger()


class ModelHubUnreachable(Unavailable):
    code = "model_hub_unreachable"


def pin(name: str, revision: str | None) -> ModelRef:
    """The model at the commit that `revision` (a branch, a tag, a commit; `main` if None) names now.

    Raises `ModelNotFound`, `ModelNotAllowed` or `ModelHubUnreachable`. Talks to the network: never call it inside a
    transaction.
    """
    with _named_errors(name, revision):
        info = HfApi(endpoint=_endpoint()).model_info(name, revision=revision, timeout=TIMEOUT_S)
        if info.sha is None:
            raise ValueError("the answer names no commit")
        files = {sibling.rfilename for sibling in info.siblings or ()}
        _check_files(name, files)
        for file in CONFIGS:
            if file in files and wants_custom_code(_read_json(info, file)):
                raise custom_code_refused(name, file)
    return ModelRef(name=name, source=ModelSource.HUB, revision=info.sha)


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _check_files(name: str, files: set[str]) -> None:
    if "config.json" not in files:
        what = "is an adapter, not a base model" if "adapter_config.json" in files else "has no config.json"
        fix = "Name the base model that it was trained from, or any other causal language model."
        raise ModelNotAllowed(f"The model {name!r} cannot be used: it {what}.", param="model", fix=fix)
    if not any(file.endswith(".safetensors") for file in files):
        raise only_pickles_refused(name) if any(file.endswith(PICKLES) for file in files) else no_weights_refused(name)


def _read_json(info: ModelInfo, file: str) -> Any:
    url = hf_hub_url(info.id, file, revision=info.sha, endpoint=_endpoint())
    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    response = get_session().get(url, headers=headers, follow_redirects=True, timeout=TIMEOUT_S)
    hf_raise_for_status(response)
    if len(response.content) > MAX_CONFIG_BYTES:
        raise ModelNotAllowed(f"The {file} of {info.id!r} is larger than 16 MiB.", param="model")
    try:
        return json.loads(response.content)
    except ValueError:
        raise ModelNotAllowed(f"The {file} of {info.id!r} is not JSON.", param="model") from None


@contextmanager
def _named_errors(name: str, revision: str | None) -> Iterator[None]:
    try:
        yield
    except GatedRepoError:
        fix = "Ask the operator to accept the model's terms and to set HF_TOKEN."
        raise ModelNotAllowed(f"The model {name!r} is gated on the hub.", param="model", fix=fix) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise ModelNotFound(f"There is no model {name!r} on the hub.", param="model") from None
    except RevisionNotFoundError:
        fix = "Give a branch, a tag or a commit of the repository."
        message = f"The model {name!r} has no revision {revision!r}."
        raise ModelNotFound(message, param="model", fix=fix) from None
    except (httpx.HTTPError, OfflineModeIsEnabled, ValueError, TypeError, KeyError) as error:
        # The last three: what answers is no hub, but the login page of a proxy, say: with no JSON, or with other JSON.
        log.warning("model_hub_unreachable", model=name, endpoint=_endpoint(), error=str(error)[:300])
        raise ModelHubUnreachable(
            f"The model hub did not answer when asked for {name!r}.",
            param="model",
            fix="Try again later, or use a model of GET /v1/models: those are on this server.",
        ) from None
