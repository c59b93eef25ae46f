"""Both methods in one form: what a job is to do, before the ledger is asked about anything that it names."""

from collections.abc import Iterator
from dataclasses import dataclass

from app.jobs.branch import inherited
from app.jobs.graders import AnyGrader, MultiGrader, PythonGrader
from app.jobs.methods import GrpoMethod, Method, ReinforcementHyperparameters, ReinforcementMethod
from app.jobs.terms import AnyTerm
from core.errors import Problem
from core.spec import (
    DEFAULT_LEARNING_RATE,
    AdapterMethod,
    AdapterSpec,
    CheckpointSpec,
    EvaluationSpec,
    GradingSpec,
    Hyperparameters,
    RecordSpec,
    StopSpec,
)
from core.watch import WatchedField

_OPENAI_NAMES = {
    "hyperparameters.prompts_per_step": "hyperparameters.batch_size",
    "evaluation.every_steps": "hyperparameters.eval_interval",
}
DEFAULT_GENERATIONS = 8
MAX_GENERATIONS = 64


@dataclass(frozen=True, slots=True)
class Plan:
    field: str
    """Path of the method's settings in the body."""
    rewards: tuple[AnyTerm, ...] | AnyGrader
    """Terms, or one grader of OpenAI's."""
    hyperparameters: Hyperparameters
    adapter: AdapterSpec
    evaluation: EvaluationSpec
    checkpoints: CheckpointSpec
    grading: GradingSpec
    watch: tuple[WatchedField, ...]
    stop: StopSpec
    record: RecordSpec
    chat_template_kwargs: dict[str, bool | int | float | str]
    warnings: tuple[Problem, ...] = ()

    def path(self, setting: str) -> str:
        """Where the client writes the setting that we call `setting`."""
        name = _OPENAI_NAMES.get(setting, setting) if self.field == "method.reinforcement" else setting
        return f"{self.field}.{name}"


def plan_of(method: Method, *, parent: AdapterSpec | None = None) -> Plan:
    """`parent` is the adapter of the checkpoint that the job begins from."""
    settings = method.chosen
    match settings:
        case GrpoMethod():
            return Plan(
                field="method.grpo",
                rewards=settings.rewards,
                hyperparameters=settings.hyperparameters,
                adapter=inherited(settings.adapter, parent),
                evaluation=settings.evaluation,
                checkpoints=settings.checkpoints,
                grading=settings.grading,
                watch=settings.watch,
                stop=settings.stop,
                record=settings.record,
                chat_template_kwargs=settings.chat_template_kwargs,
            )
        case ReinforcementMethod():
            return _reinforcement(settings, inherited(AdapterSpec(), parent))
        case None:
            raise AssertionError("a parsed method has its settings")


def _reinforcement(method: ReinforcementMethod, adapter: AdapterSpec) -> Plan:
    return Plan(
        field="method.reinforcement",
        rewards=method.grader,
        hyperparameters=_hyperparameters(method.hyperparameters, adapter.method),
        adapter=adapter,
        evaluation=_evaluation(method.hyperparameters),
        checkpoints=CheckpointSpec(),
        grading=GradingSpec(),
        watch=(),
        stop=StopSpec(),
        record=RecordSpec(),
        chat_template_kwargs={},
        warnings=tuple(_warnings(method)),
    )


def _hyperparameters(asked: ReinforcementHyperparameters, adapter: AdapterMethod) -> Hyperparameters:
    """OpenAI's numbers in ours; what is `"auto"` or absent is our default."""
    values: dict[str, float] = {}
    if (batch_size := _number(asked.batch_size)) is not None:
        values["prompts_per_step"] = batch_size
    if (n_epochs := _number(asked.n_epochs)) is not None:
        values["n_epochs"] = n_epochs
    if (multiplier := _number(asked.learning_rate_multiplier)) is not None:
        values["learning_rate"] = multiplier * DEFAULT_LEARNING_RATE[adapter]
    if (multiplier := _number(asked.compute_multiplier)) is not None:
        values["num_generations"] = min(max(round(DEFAULT_GENERATIONS * multiplier), 2), MAX_GENERATIONS)
    return Hyperparameters.model_validate(values)


def _evaluation(asked: ReinforcementHyperparameters) -> EvaluationSpec:
    samples = _number(asked.eval_samples)
    return EvaluationSpec.model_validate(
        {"every_steps": _number(asked.eval_interval), **({} if samples is None else {"samples_per_task": samples})}
    )


def _number(value: float | str | None) -> float | None:
    return None if isinstance(value, str) else value


def _warnings(method: ReinforcementMethod) -> Iterator[Problem]:
    graders = {"method.reinforcement.grader": method.grader}
    if isinstance(method.grader, MultiGrader):
        graders = {f"method.reinforcement.grader.graders.{key}": one for key, one in method.grader.graders.items()}
    for path, grader in graders.items():
        if isinstance(grader, PythonGrader) and grader.image_tag is not None:
            fix = "Use the standard library, numpy, scipy, sympy, mpmath and regex."
            message = "is ignored: graders run in a process on the worker"
            yield Problem(f"{path}.image_tag", message, "ignored_field", fix)
