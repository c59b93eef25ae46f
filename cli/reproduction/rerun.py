"""The same job once more, over HTTP: its inputs uploaded, its spec written as the body of a create, and followed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.client import Client, JobView
from cli.demo import POLL_S, Tend, describe
from cli.errors import RequestFailed
from cli.interrupts import pause
from cli.reproduction.errors import ServerLacksModel
from cli.reproduction.inputs import Inputs
from cli.terminal import changing_line, say
from core.builtin_rewards.outside import Credentials
from core.bundle import Bundle
from core.spec import BuiltinReward, JobSpec, PinnedReward, RewardTerm

SETTINGS = (
    "hyperparameters", "adapter", "evaluation", "checkpoints", "grading", "watch", "stop", "record",
    "chat_template_kwargs",
)  # fmt: skip
"""Parts of a spec that stand in the body as they stand in the spec."""
LACKS = ("model_not_found", "model_not_allowed", "checkpoint_not_found", "checkpoint_gone")


@dataclass(frozen=True, slots=True)
class Uploads:
    """The ids that the server gave."""

    training: str
    held_out: str | None
    rewards: Mapping[str, str]
    """By name."""


class RerunClient(Client):
    def upload_source(self, path: Path, term: PinnedReward) -> str:
        """The reward, called as it was called in the job."""
        form = {"name": term.name, "entry_point": term.entry_point, "form": str(term.form)}
        return self._upload("/v1/rewards", path, form)

    def bundle(self, job_id: str) -> bytes:
        """Of a job, without its data."""
        return self.get(f"/v1/fine_tuning/jobs/{job_id}/bundle?data=false")


def run_again(client: RerunClient, bundle: Bundle, inputs: Inputs, tend: Tend) -> JobView:
    """The job once it has ended, or was paused by a rule of its own. Ctrl+C cancels it."""
    body = create_body(bundle, _upload(client, bundle.spec, inputs), inputs.credentials)
    job = _submit(client, body)
    say(f"{job.id} runs {bundle.job.id} again: {bundle.spec.max_steps} steps of {body['model']}.")
    try:
        return _follow(client, job.id, tend)
    except KeyboardInterrupt:
        client.cancel(job.id)
        raise


def create_body(bundle: Bundle, uploads: Uploads, credentials: Mapping[str, Credentials]) -> dict[str, Any]:
    """What resolves to the bundle's spec again, ids apart: every default is written out."""
    spec = bundle.spec
    document = spec.model_dump(mode="json")
    body = {
        "model": bundle.start_model or _reference(spec),
        "training_file": uploads.training,
        "validation_file": uploads.held_out,
        "seed": spec.seed,
        "suffix": spec.suffix,
        "metadata": {"reproduces": bundle.job.id},
        "resources": document["resources"],
    }
    rewards = [_term(term, uploads.rewards, credentials) for term in spec.rewards]
    settings = {name: document[name] for name in SETTINGS}
    return {**body, "method": {"type": "grpo", "grpo": {"rewards": rewards, **settings}}}


def _upload(client: RerunClient, spec: JobSpec, inputs: Inputs) -> Uploads:
    return Uploads(
        training=client.upload_file(inputs.training),
        held_out=None if inputs.held_out is None else client.upload_file(inputs.held_out),
        rewards={
            term.name: client.upload_source(inputs.sources[term.name], term)
            for term in spec.rewards
            if isinstance(term, PinnedReward)
        },
    )


def _reference(spec: JobSpec) -> str:
    model = spec.model
    return model.name if model.revision is None else f"{model.name}@{model.revision}"


def _term(term: RewardTerm, ids: Mapping[str, str], credentials: Mapping[str, Credentials]) -> dict[str, Any]:
    gate = None if term.gate is None else term.gate.model_dump(mode="json")
    share = {"name": term.name, "weight": term.weight, "gate": gate}
    if isinstance(term, BuiltinReward):
        secret = credentials[term.name].model_dump() if term.name in credentials else {}
        return {**term.parameters.model_dump(mode="json"), **secret, **share}
    return {"reward": ids[term.name], **share}


def _submit(client: Client, body: dict[str, Any]) -> JobView:
    try:
        return client.submit(body)
    except RequestFailed as error:
        if error.message.startswith(LACKS):
            raise ServerLacksModel(f"{client.url} cannot run this job: {error.message}") from error
        raise


def _follow(client: Client, job_id: str, tend: Tend) -> JobView:
    with changing_line() as show:
        while True:
            tend()
            job = client.job(job_id)
            if job.has_ended or job.status == "paused":
                return job
            show(describe(job))
            pause(POLL_S)
