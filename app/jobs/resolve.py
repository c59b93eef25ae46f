"""From a body without problems to a complete `JobSpec`: every default filled in, every name pinned. Pure."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.jobs.facts import Facts, KnownBuiltin, KnownReward
from app.jobs.plan import Plan
from app.jobs.schemas import JobCreate
from app.jobs.split import Split, total_steps
from core.builtin_rewards.outside import Http
from core.db.models import File
from core.errors import Problem
from core.rows import FileFormat
from core.spec import (
    DEFAULT_LEARNING_RATE,
    BuiltinReward,
    DataRef,
    Hyperparameters,
    JobSpec,
    ModelRef,
    PinnedReward,
    RewardTerm,
)
from core.split import FEWEST_SIGNIFICANT

DEFAULT_SEED = 42
"""transformers' own; a fixed one, so that the same body always means the same run."""
MAX_NAME = 64

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Resolved:
    spec: JobSpec
    inline_sources: dict[str, str]
    """By reward name: the source of a grader that came inside the body, the credentials of an `http` reward (JSON)."""
    fields: tuple[str, ...]
    """Paths of the spec's rewards in the body."""
    split: Split
    warnings: tuple[Problem, ...]


def resolve(body: JobCreate, plan: Plan, facts: Facts, model: ModelRef) -> Resolved:
    """Only for a job with which `app.jobs.checks` finds nothing wrong."""
    assert facts.training is not None
    split = Split.of_files(facts.training, facts.held_out, plan.evaluation.held_out_fraction)
    terms, inline_sources = pin(facts.rewards)
    spec = JobSpec(
        model=model,
        training=_data(facts.training),
        held_out=None if facts.held_out is None else _data(facts.held_out),
        seed=DEFAULT_SEED if body.seed is None else body.seed,
        rewards=terms,
        hyperparameters=_complete(plan, split),
        adapter=plan.adapter,
        evaluation=plan.evaluation,
        checkpoints=plan.checkpoints,
        grading=plan.grading,
        watch=plan.watch,
        stop=plan.stop,
        record=plan.record,
        resources=body.resources.pinned,
        chat_template_kwargs=plan.chat_template_kwargs,
        suffix=body.suffix,
        start_from=None if facts.start is None else facts.start.checkpoint,
    )
    return Resolved(
        spec=spec,
        inline_sources=inline_sources,
        fields=tuple(reward.field for reward in facts.rewards),
        split=split,
        warnings=(*plan.warnings, *_warnings(plan, split, spec)),
    )


def spec_sha256(spec: JobSpec) -> str:
    """Of its canonical JSON: equal when what would run is equal."""
    text = json.dumps(spec.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _data(file: File) -> DataRef:
    assert file.format is not None
    assert file.rows is not None
    return DataRef(
        file_id=file.id, filename=file.filename, format=FileFormat(file.format), sha256=file.sha256, rows=file.rows
    )


def unique_names(rewards: Sequence[KnownReward | KnownBuiltin]) -> list[str]:
    """Names as metrics can carry them; of equal ones the second becomes `name-2`."""
    taken: list[str] = []
    for reward in rewards:
        stem = _NOT_IN_NAMES.sub("-", reward.name).strip("-")[:MAX_NAME] or "reward"
        name, number = stem, 1
        while name in taken:
            number += 1
            ending = f"-{number}"
            name = stem[: MAX_NAME - len(ending)] + ending
        taken.append(name)
    return taken


def pin(rewards: Sequence[KnownReward | KnownBuiltin]) -> tuple[tuple[RewardTerm, ...], dict[str, str]]:
    """The terms as a spec has them, and what is kept beside it, by name (`Resolved.inline_sources`)."""
    pinned = [_pin(name, reward) for name, reward in zip(unique_names(rewards), rewards, strict=True)]
    return tuple(term for term, _ in pinned), {term.name: kept for term, kept in pinned if kept is not None}


def _pin(name: str, reward: KnownReward | KnownBuiltin) -> tuple[RewardTerm, str | None]:
    """The term, and what is kept beside the spec for it."""
    if isinstance(reward, KnownBuiltin):
        return _pin_builtin(name, reward)
    term = PinnedReward(
        name=name,
        weight=reward.weight,
        gate=reward.gate,
        source_sha256=reward.source_sha256,
        entry_point=reward.entry.name,
        form=reward.entry.form,
        reward_id=reward.reward_id,
        version_id=reward.version_id,
    )
    return term, reward.inline_source


def _pin_builtin(name: str, reward: KnownBuiltin) -> tuple[BuiltinReward, str | None]:
    parameters, kept = reward.parameters, None
    if isinstance(parameters, Http):
        parameters, credentials = parameters.apart()
        kept = None if credentials is None else credentials.model_dump_json()
    digest = None if kept is None else hashlib.sha256(kept.encode()).hexdigest()
    term = BuiltinReward(
        name=name, weight=reward.weight, gate=reward.gate, parameters=parameters, credentials_sha256=digest
    )
    return term, kept


def _complete(plan: Plan, split: Split) -> Hyperparameters:
    asked = plan.hyperparameters
    rate = asked.learning_rate or DEFAULT_LEARNING_RATE[plan.adapter.method]
    steps = total_steps(asked, split.training_rows)
    return asked.model_copy(update={"learning_rate": rate, "max_steps": steps, "n_epochs": None})


def _warnings(plan: Plan, split: Split, spec: JobSpec) -> Iterator[Problem]:
    file = "validation_file" if spec.held_out else "training_file"
    if split.held_out_tasks < FEWEST_SIGNIFICANT:
        yield Problem(
            file,
            f"with {split.held_out_tasks} held-out tasks no change can be significant, not even if all were fixed",
            "weak_verdict",
            f"Hold out at least {FEWEST_SIGNIFICANT} tasks; 100 or more show small changes.",
        )
    if split.held_out_tasks < split.held_out_rows:
        yield Problem(
            file,
            f"the {split.held_out_rows} held-out rows have {split.held_out_tasks} different prompts: "
            "the verdict counts rows with the same prompt as one task",
            "repeated_tasks",
            "Give each prompt once, unless its rows are graded differently.",
        )
    every = plan.evaluation.every_steps
    if plan.stop.held_out_patience is not None and every is None:
        yield Problem(
            plan.path("stop.held_out_patience"),
            "there are no evaluations on the way that could run out of patience",
            "no_interim_evaluation",
            "Set evaluation.every_steps.",
        )
    if every is not None and every >= spec.max_steps:
        yield Problem(
            plan.path("evaluation.every_steps"),
            f"the job has {spec.max_steps} steps, so only the baseline and the final evaluation are made",
            "no_interim_evaluation",
            f"Use less than {spec.max_steps} to see the held-out score on the way.",
        )
