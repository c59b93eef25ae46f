"""Reports of signal probes for tests, from the rewards of their groups."""

from collections.abc import Mapping, Sequence

from core.results import Environment, PhaseSeconds
from core.signal_report import ProbeSize, SignalReport
from core.spec import Hyperparameters, JobSpec
from tests.factories import make_spec
from worker.grading.gates import Settlement
from worker.grading.grades import Grade, GradeOutcome
from worker.training.rewards import Scored
from worker.training.signal_maths import Group, Sample
from worker.training.signal_summary import Probed, summarise

SAMPLES = 4
ALWAYS, NEVER, HALF, MIXED = [1.0] * 4, [0.0] * 4, [0.5] * 4, [0.0, 1.0, 0.0, 1.0]
NOT_GRADED = Grade(GradeOutcome.USER_ERROR, message="KeyError: 'answer'")


def make_report(
    *groups, spec: JobSpec | None = None, grades=None, text="text {row} {n}", cut=False, rows=200
) -> SignalReport:
    """The report of groups of four rewards each; None is a completion that could not be graded.

    `grades`: what each term said, where it is not the reward; the job's gates decide what that counts for.
    """
    made = [
        Group(
            row=row,
            prompt_tokens=10,
            samples=tuple(
                Sample(text.format(row=row, n=n), tokens=n + 1, is_truncated=cut, reward=reward)
                for n, reward in enumerate(rewards)
            ),
        )
        for row, rewards in enumerate(groups, 1)
    ]
    spec = spec or make_spec(hyperparameters=hyperparameters())
    rewards = [sample.reward for group in made for sample in group.samples]
    said = [NOT_GRADED if reward is None else Grade(GradeOutcome.SCORED, reward) for reward in rewards]
    columns = grades or {term.name: said for term in spec.rewards}
    environment = Environment(
        python="3.11.7", platform="Linux", device="cpu", driver=None, dtype="float32", libraries={}
    )
    seen = Probed(
        groups=made,
        scored=settle(columns, rewards, spec),
        training_rows=rows,
        time=PhaseSeconds(load=1.0, evaluation=2.0, total=3.5),
        environment=environment,
    )
    return summarise(seen, spec, ProbeSize(prompts=len(groups), samples=SAMPLES))


def settle(columns: Mapping[str, Sequence[Grade]], rewards: Sequence[float | None], spec: JobSpec) -> list[Scored]:
    """What terms said of each completion, by term, counted as the job's gates would have it."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    settled = [Settlement(spec.rewards).settle(row) for row in rows]
    return [Scored(one.grades, reward, one.counted) for one, reward in zip(settled, rewards, strict=True)]


def hyperparameters(**changes) -> Hyperparameters:
    facts = {"max_steps": 4, "learning_rate": 1e-3, "num_generations": SAMPLES, "prompts_per_step": 2}
    return Hyperparameters.model_validate(facts | changes)
