"""What `rescore` reads of a job, and how much of it: chosen before anything large is read."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from core.db import files, jobs, rescoring, rewards
from core.db.models import File, Job, RewardVersion
from core.db.rescoring import Outline
from core.errors import NotFound
from core.recorded import MOST_BYTES, Coverage, LeftOut, RecordedStep
from core.rescoring import Rescore, choose_steps
from core.spec import JobSpec
from worker.grading_tasks.context import Context

ROLLOUT_BYTES = MOST_BYTES * 3 // 4
"""What rollouts may take of them: the rest is kept for evaluations."""


class RescoredThingGone(NotFound):
    """The job, its data set or the reward's version is not there any more."""

    code = "rescored_thing_gone"
    default_fix = "A job's rows are needed to grade its rollouts again: keep its files."


@dataclass(frozen=True, slots=True)
class Choice:
    """The rollouts to grade: whole groups of whole steps, in order."""

    steps: Mapping[int, Sequence[Outline]]
    left_out: LeftOut

    @property
    def size_bytes(self) -> int:
        return sum(_size(outlines) for outlines in self.steps.values())

    @property
    def rollouts(self) -> int:
        return sum(map(len, self.steps.values()))


@dataclass(frozen=True, slots=True)
class Found:
    """What there is, without the texts."""

    spec: JobSpec
    version: RewardVersion
    training: File
    held_out: File
    recorded: Mapping[int, RecordedStep]
    choice: Choice
    evaluations: Sequence[str]
    """Names, those that the verdict compares first. None where the job has other terms."""


def look_up(asked: Rescore, context: Context) -> Found:
    """Raises RescoredThingGone."""
    with context.place.sessions() as session:
        job = jobs.get_owned(session, context.tenant_id, asked.job_id)
        version = rewards.version(session, asked.version_id)
        if job is None or version is None:
            raise RescoredThingGone("The job or the reward's version is gone.")
        spec = JobSpec.model_validate(job.spec)
        evaluations = _evaluations(session, job, asked) if len(spec.rewards) == 1 else []
        training = files.get_owned(session, context.tenant_id, job.training_file)
        held_out_id = job.validation_file or job.training_file  # which may be a part of the same file
        held_out = files.get_owned(session, context.tenant_id, held_out_id) if evaluations else training
        counts = rescoring.rollout_counts(session, job, from_step=asked.from_step, to_step=asked.to_step)
        within = choose_steps(counts, asked.limit)
        outlines = {step: rescoring.outlines(session, job.id, step) for step in within}
        shares = rescoring.silent_shares(session, job, within)
        generated = rescoring.generated_groups(session, job, within)
    if training is None or held_out is None:
        raise RescoredThingGone("A data set of the job is gone.")
    choice = choose(outlines, spec.hyperparameters.num_generations, over_limit=sum(counts.values()) - _count(outlines))
    recorded = {
        step: RecordedStep(
            coverage=_coverage(spec, outlines[step], generated.get(step)), run_silent_share=shares.get(step)
        )
        for step in choice.steps
    }
    return Found(spec, version, training, held_out, recorded, choice, evaluations)


def choose(
    outlines: Mapping[int, Sequence[Outline]], group_size: int, *, over_limit: int = 0, most_bytes: int = ROLLOUT_BYTES
) -> Choice:
    """As many steps as `most_bytes` allow, evenly spread; of one that is larger alone, its first groups."""
    whole = {step: whole_groups(ones, group_size) for step, ones in outlines.items()}
    steps = {
        step: whole[step] for step in choose_steps({step: _size(ones) + 1 for step, ones in whole.items()}, most_bytes)
    }
    chosen = {step: _first_groups(ones, group_size, most_bytes) for step, ones in steps.items()}
    left_out = LeftOut(
        in_cut_groups=_count(outlines) - _count(whole), over_limit=over_limit, too_large=_count(whole) - _count(chosen)
    )
    return Choice(chosen, left_out)


def whole_groups(outlines: Iterable[Outline], group_size: int) -> list[Outline]:
    """Those of groups of which all are there; groups stand together in a step."""
    groups: defaultdict[int, list[Outline]] = defaultdict(list)
    for outline in outlines:
        groups[outline.index // group_size].append(outline)
    return [one for group in groups.values() if len(group) == group_size for one in group]


def _first_groups(outlines: Sequence[Outline], group_size: int, most_bytes: int) -> Sequence[Outline]:
    """Of whole groups."""
    for end in range(group_size, len(outlines) + 1, group_size):
        most_bytes -= _size(outlines[end - group_size : end])
        if most_bytes < 0:
            return outlines[: end - group_size]
    return outlines


def _coverage(spec: JobSpec, outlines: Sequence[Outline], generated: float | None) -> Coverage:
    """`generated`: groups, as the run told; unset: as many as a step is trained on, or as the record shows."""
    shape = spec.hyperparameters
    shown = max((outline.index // shape.num_generations + 1 for outline in outlines), default=0)
    groups = max(round(generated or shape.prompts_per_step), shown)
    return Coverage(
        rollouts=groups * shape.num_generations,
        groups=groups,
        recorded_rollouts=len(outlines),
        recorded_groups=len(whole_groups(outlines, shape.num_generations)) // shape.num_generations,
    )


def _evaluations(session: Session, job: Job, asked: Rescore) -> list[str]:
    names = rescoring.evaluation_names(session, job, from_step=asked.from_step, to_step=asked.to_step)
    return sorted(names, key=lambda name: name not in {"baseline", "final"})


def _size(outlines: Iterable[Outline]) -> int:
    return sum(outline.size_bytes for outline in outlines)


def _count(outlines: Mapping[int, Sequence[Outline]]) -> int:
    return sum(map(len, outlines.values()))
