"""A signal probe: groups of completions of the model as the job would begin with it, graded, and nothing trained."""

import random
import time
from collections.abc import Sequence
from typing import Any

from peft import get_peft_model
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from core.rows import Row
from core.signal_report import ProbeSize, SignalReport
from core.spec import AdapterMethod, JobSpec
from core.status import Stage
from worker.run_directory import RunDirectory, RunPlan, StageStarted
from worker.training import config
from worker.training.data import Task, load_data, tokenize
from worker.training.environment import Device, describe_environment
from worker.training.evaluate import Decoding, Evaluator
from worker.training.failures import GradersDown
from worker.training.model import load_policy, load_start, load_tokenizer
from worker.training.phases import Phase, PhaseTimer
from worker.training.rewards import Completion, Rewards, Scored
from worker.training.signal_maths import Group, Sample
from worker.training.signal_summary import Probed, summarise
from worker.training.stop import StopRequest


def probe_signal(
    run: RunDirectory,
    plan: RunPlan,
    size: ProbeSize,
    rewards: Rewards,
    device: Device,
    phases: PhaseTimer,
    stop: StopRequest,
) -> SignalReport:
    """Raises `Stopped` between batches, and `GradersDown` when no completion could be graded and no reward is at
    fault: another attempt may do better.
    """
    spec = plan.spec
    with phases.phase(Phase.LOAD):
        tokenizer = load_tokenizer(plan)
        training = load_data(run, spec, tokenizer).training
        tasks = _tasks(choose_rows(training, size.prompts, spec.seed), tokenizer, spec)
        model = _load_model(run, plan, tokenizer, device)
    run.append(StageStarted(at=time.time(), stage=Stage.PROBING))
    repeated = [task for task in tasks for _ in range(size.samples)]
    evaluator = Evaluator(model, tokenizer, _eos_token_ids(model, tokenizer), repeated, rewards, spec, device, stop)
    rewards.on_term = evaluator.on_batch = phases.beat
    with phases.phase(Phase.EVALUATION):
        graded = evaluator.grade_all(_decoding(spec), step=0)
    scored = [score for _, score in graded]
    _require_graders(scored)
    probed = Probed(
        groups=_groups(tasks, graded, size.samples),
        scored=scored,
        training_rows=len(training),
        time=phases.totals(),
        environment=describe_environment(device),
    )
    return summarise(probed, spec, size)


def choose_rows(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    """`count` rows at random, or all where there are no more; in the order of the file."""
    places = random.Random(seed).sample(range(len(rows)), min(count, len(rows)))
    return [rows[place] for place in sorted(places)]


def _tasks(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, spec: JobSpec) -> list[Task]:
    ids = tokenize(tokenizer, rows, spec.chat_template_kwargs)
    return [Task(row, prompt_ids) for row, prompt_ids in zip(rows, ids, strict=True)]


def _load_model(run: RunDirectory, plan: RunPlan, tokenizer: PreTrainedTokenizerBase, device: Device) -> Any:
    """The policy before its first step. A new adapter changes nothing; that of a branch is what it begins with."""
    model: Any = load_policy(run, plan, tokenizer, device)
    lora = config.lora_config(plan.spec)
    if plan.spec.start_from is not None and lora is not None:
        model = get_peft_model(model, lora)
        load_start(model, run, plan.spec)
    is_on_gpu = plan.spec.adapter.method is AdapterMethod.QLORA
    return (model if is_on_gpu else model.to(device.kind)).eval()


def _eos_token_ids(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What ends a completion in training too (TRL 1.16, `GRPOTrainer.__init__`)."""
    known = model.generation_config.eos_token_id
    ids = [known] if isinstance(known, int) else list(known or ())
    return ids if tokenizer.eos_token_id in ids else [tokenizer.eos_token_id, *ids]


def _decoding(spec: JobSpec) -> Decoding:
    """As the job's rollouts are sampled."""
    wanted = spec.hyperparameters
    return Decoding(wanted.max_completion_length, wanted.temperature, wanted.top_p, spec.seed)


def _require_graders(scored: Sequence[Scored]) -> None:
    if all(score.is_infrastructure_error for score in scored):
        raise GradersDown(f"Not one completion could be graded. The last error: {scored[-1].error}")


def _groups(tasks: Sequence[Task], graded: Sequence[tuple[Completion, Scored]], samples: int) -> list[Group]:
    """`graded` in the order of the tasks, the samples of each together."""
    made = [
        Sample(completion.text, len(completion.token_ids), completion.is_truncated, scored.reward)
        for completion, scored in graded
    ]
    return [
        Group(task.row.line, len(task.prompt_ids), tuple(made[place * samples : (place + 1) * samples]))
        for place, task in enumerate(tasks)
    ]
