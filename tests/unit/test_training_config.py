"""The trainer's pure parts: TRL's numbers, advantages, silent groups, the phase clock, the split, named failures."""

from typing import Any

import pytest
import torch
from trl.trainer.utils import nanstd

from core.rows import Row
from core.spec import GradingSpec, JobSpec
from core.status import StatusReason
from worker.grading.grades import Grade, GradeOutcome, combine
from worker.grading.sandbox import SandboxUnavailable
from worker.run_directory import FailureDetail
from worker.training.config import grpo_arguments, grpo_config, lora_config, resolved_parameters
from worker.training.data import split_rows
from worker.training.environment import Device
from worker.training.failures import GradingUnreliable, RewardUnusable, named_failure
from worker.training.phases import Phase, PhaseTimer
from worker.training.progress import Progress
from worker.training.rewards import GradingWatch, Scored, require_rewards
from worker.training.rollouts import find_signal
from worker.training.run import gpus_for

CPU = Device("cpu", "cpu", bf16=False)
GPU = Device("cuda", "NVIDIA H100", bf16=True)
OLD_GPU = Device("cuda", "Tesla T4", bf16=False)


def spec(**sections: Any) -> JobSpec:
    data = {"file_id": "file-1", "filename": "a.jsonl", "format": "jsonl", "sha256": "0" * 64, "rows": 10}
    reward = {"name": "exact", "source_sha256": "0" * 64, "entry_point": "reward", "form": "per_sample"}
    hyperparameters = {"max_steps": 10, "learning_rate": 1e-5, **sections.pop("hyperparameters", {})}
    return JobSpec.model_validate(
        {
            "model": {"name": "org/model", "source": "hub", "revision": "a" * 40},
            "training": data,
            "held_out": None,
            "seed": 3,
            "rewards": [{**reward, "weight": 2.0}, {**reward, "name": "short"}],
            "hyperparameters": hyperparameters,
            "adapter": {},
            "evaluation": {},
            **sections,
        }
    )


@pytest.mark.parametrize(
    ("prompts", "group", "wanted", "device", "size"),
    [
        (8, 8, None, CPU, 64),
        (16, 8, None, CPU, 64),
        (16, 8, None, GPU, 16),
        (3, 7, None, GPU, 7),
        (1, 2, None, GPU, 2),
        (13, 5, None, CPU, 13),
        (16, 8, 32, GPU, 32),
    ],
)
def test_one_generation_batch_holds_the_rollouts_of_one_step(
    prompts: int, group: int, wanted: int | None, device: Device, size: int
) -> None:
    hyperparameters = {"prompts_per_step": prompts, "num_generations": group, "rollouts_per_pass": wanted}
    arguments = grpo_arguments(spec(hyperparameters=hyperparameters), device)
    assert arguments["per_device_train_batch_size"] == size
    assert size * arguments["gradient_accumulation_steps"] == prompts * group
    assert arguments["steps_per_generation"] == arguments["gradient_accumulation_steps"]


@pytest.mark.parametrize(("wanted", "size"), [(None, 16), (8, 8)])
def test_each_of_several_processes_has_its_share_of_a_step(wanted: int | None, size: int) -> None:
    hyperparameters = {"prompts_per_step": 16, "num_generations": 8, "rollouts_per_pass": wanted}
    arguments = grpo_arguments(spec(hyperparameters=hyperparameters, resources={"gpus": 4}), GPU)
    assert arguments["per_device_train_batch_size"] == size
    assert 4 * size * arguments["gradient_accumulation_steps"] == 16 * 8


@pytest.mark.parametrize(
    ("processes", "visible", "ours"),
    [(1, None, "0"), (2, None, "0,1"), (2, "5,6,7", "5,6"), (1, "", ""), (3, "4", "4")],
)
def test_a_run_sees_the_first_of_the_workers_gpus(processes: int, visible: str | None, ours: str) -> None:
    assert gpus_for(processes, visible) == ours


def test_trl_accepts_the_numbers_and_changes_none_of_them(tmp_path: Any) -> None:
    wanted = spec(hyperparameters={"rollouts_per_pass": 16})
    config = grpo_config(wanted, CPU, tmp_path)
    assert config.generation_batch_size == 64
    for name, value in grpo_arguments(wanted, CPU).items():
        kept = getattr(config, name)
        assert kept == value or (name == "report_to" and kept == []), name


def test_nothing_that_trl_would_choose_by_itself_is_left_to_it() -> None:
    arguments = grpo_arguments(spec(), CPU)
    assert arguments["bf16"] is False
    assert arguments["gradient_checkpointing"] is False
    assert arguments["lr_scheduler_type"] == "constant"
    assert arguments["top_k"] == 0
    assert arguments["logging_nan_inf_filter"] is False
    assert arguments["save_strategy"] == "no"


@pytest.mark.parametrize(("device", "bf16"), [(CPU, False), (OLD_GPU, False), (GPU, True)])
def test_bf16_only_where_the_device_has_it(device: Device, bf16: bool) -> None:
    assert grpo_arguments(spec(), device)["bf16"] is bf16


def test_rewards_are_weighed_in_the_order_of_the_spec() -> None:
    assert grpo_arguments(spec(), CPU)["reward_weights"] == [2.0, 1.0]


def test_a_perfect_answer_passes_whatever_the_weights() -> None:
    """0.1 + 0.2 + 0.3 is 0.6000000000000001 one way, and 0.6 another."""
    terms = [{**spec().rewards[0].model_dump(), "name": str(weight), "weight": weight} for weight in (0.1, 0.2, 0.3)]
    wanted = spec(rewards=terms)
    perfect = {term.name: Grade(GradeOutcome.SCORED, 1.0) for term in wanted.rewards}
    reward = combine(perfect, {term.name: term.weight for term in wanted.rewards})
    assert reward is not None
    assert reward >= wanted.pass_threshold


def test_cispo_does_not_inherit_a_clip_that_would_scale_the_loss() -> None:
    assert grpo_arguments(spec(hyperparameters={"loss_type": "cispo"}), CPU)["epsilon_high"] == 5.0
    assert grpo_arguments(spec(hyperparameters={"loss_type": "cispo", "epsilon_high": 4}), CPU)["epsilon_high"] == 4.0


def test_trl_starts_no_vllm_engine_of_its_own(tmp_path: Any) -> None:
    wanted = spec(hyperparameters={"use_vllm": True, "loss_type": "vespo"})
    assert grpo_config(wanted, CPU, tmp_path).use_vllm is False
    assert resolved_parameters(wanted, CPU)["grpo"]["use_vllm"] is True
    assert grpo_arguments(wanted, CPU)["vllm_importance_sampling_mode"] == "token_truncate"


def test_luspo_is_a_loss_over_sequences() -> None:
    assert grpo_arguments(spec(hyperparameters={"loss_type": "luspo"}), CPU)["importance_sampling_level"] == "sequence"


def test_the_frozen_copy_of_a_fully_trained_model_is_the_pinned_one() -> None:
    arguments = grpo_arguments(spec(adapter={"method": "full"}, hyperparameters={"beta": 0.1}), CPU)
    assert arguments["model_init_kwargs"] == {
        "use_safetensors": True,
        "trust_remote_code": False,
        "revision": "a" * 40,
    }


def test_full_training_has_no_adapter() -> None:
    assert lora_config(spec(adapter={"method": "full"})) is None


def test_the_adapter_is_bound_to_the_revision_of_its_base() -> None:
    adapter = lora_config(spec(adapter={"r": 4, "alpha": 8, "target_modules": ["q_proj"]}))
    assert adapter is not None
    assert (adapter.r, adapter.lora_alpha, adapter.target_modules) == (4, 8, {"q_proj"})
    assert adapter.revision == "a" * 40


def test_resolved_parameters_name_no_folder() -> None:
    assert "output_dir" not in resolved_parameters(spec(), CPU)["grpo"]


@pytest.mark.parametrize(
    ("deviation", "right", "wrong"),
    [(lambda group: group.std(correction=0), 1.29, -0.77), (lambda group: nanstd(group, dim=0), 1.21, -0.72)],
    ids=["population", "sample, as TRL computes it"],
)
def test_advantages_of_the_source_document(deviation: Any, right: float, wrong: float) -> None:
    """`facts.md` section 1; TRL: (reward - mean) / (std + 1e-4)."""
    rewards = torch.tensor([1.0, 0, 0, 1, 1, 0, 0, 0])
    advantages = (rewards - rewards.mean()) / (deviation(rewards) + 1e-4)
    assert advantages[0].item() == pytest.approx(right, abs=0.005)
    assert advantages[1].item() == pytest.approx(wrong, abs=0.005)


def test_a_group_is_silent_when_its_rewards_are_equal_as_the_trainer_sees_them() -> None:
    """In 32 bits: what is lost there makes no advantage."""
    signal = find_signal([[0.9] * 8, [0.9, 0.9 + 1e-6], [0.1 + 0.2, 0.3], [0.0, 1.0]], pass_threshold=1.0)
    assert (signal.groups, signal.silent) == (4, 2)


def test_silent_groups_are_told_apart_by_whether_they_pass() -> None:
    signal = find_signal([[1.0, 1.0], [0.3, 0.3], [0.0, 0.0], [0.0, 1.0]], pass_threshold=1.0)
    assert signal.metrics == {
        "signal/silent_share": 0.75,
        "signal/silent_all_right": 0.25,
        "signal/silent_all_wrong": 0.5,
        "signal/effective_groups": 1,
    }


def test_ungraded_rollouts_are_in_no_group() -> None:
    assert find_signal([[], [0.5], [0.2, 0.4]], pass_threshold=1.0).groups == 2
    assert find_signal([[]], pass_threshold=1.0).metrics == {}


def rows(*prompts: str) -> list[Row]:
    return [Row(line, prompt, {}) for line, prompt in enumerate(prompts, start=1)]


def test_rows_with_the_same_prompt_are_on_one_side_of_the_split() -> None:
    training, held_out = split_rows(rows(*"abcabcabdd"), 0.5, seed=1)
    assert {row.prompt for row in training}.isdisjoint(row.prompt for row in held_out)
    assert sorted(row.line for row in (*training, *held_out)) == list(range(1, 11))


def test_the_split_follows_the_seed() -> None:
    lines = [[row.line for row in split_rows(rows(*map(str, range(50))), 0.2, seed)[1]] for seed in (1, 1, 2)]
    assert lines[0] == lines[1] != lines[2]
    assert len(lines[0]) == 10


def test_two_tasks_at_least_are_held_out() -> None:
    assert len(split_rows(rows(*"abcdef"), 0.1, seed=1)[1]) == 2


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_phases_are_exclusive_and_sum_to_the_time_that_passed() -> None:
    clock = FakeClock()
    timer = PhaseTimer(clock)
    clock.now += 1  # rest
    with timer.phase(Phase.GENERATION):
        clock.now += 5
        with timer.phase(Phase.WEIGHT_SYNC):
            clock.now += 2
        clock.now += 1
    clock.now += 0.5  # rest
    totals = timer.totals()
    assert (totals.generation, totals.weight_sync, totals.rest, totals.total) == (6, 2, 1.5, 9.5)


def test_a_lap_holds_what_passed_since_the_one_before() -> None:
    clock = FakeClock()
    timer = PhaseTimer(clock)
    timer.enter(Phase.OPTIMIZER)
    clock.now += 3
    assert timer.lap()[Phase.OPTIMIZER] == 3
    clock.now += 4
    timer.leave()
    clock.now += 1
    lap = timer.lap()
    assert (lap[Phase.OPTIMIZER], lap[Phase.REST], sum(lap.values())) == (4, 1, 5)


def test_a_phase_ends_when_its_work_raises() -> None:
    clock = FakeClock()
    timer = PhaseTimer(clock)

    def fail() -> None:
        clock.now += 1
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - our own, two lines up
        timer.timed(Phase.BACKWARD, fail)()
    clock.now += 1
    assert (timer.totals().backward, timer.totals().rest) == (1, 1)


def test_the_device_is_waited_for_at_every_border() -> None:
    waits: list[int] = []
    timer = PhaseTimer(FakeClock(), synchronize=lambda: waits.append(1))
    with timer.phase(Phase.FORWARD):
        pass
    assert len(waits) == 2


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
)
def test_a_full_memory_is_named_and_may_be_tried_again(error: Exception) -> None:
    detail = named_failure(error).detail
    assert (detail.reason, detail.code, detail.retryable) == (StatusReason.OUT_OF_MEMORY, "out_of_memory", True)
    assert "rollouts_per_pass" in (detail.fix or "")


def test_a_machine_that_cannot_isolate_pauses_the_job_with_the_fix() -> None:
    detail = named_failure(SandboxUnavailable("Reward code cannot be isolated on this machine: bwrap: no")).detail
    assert (detail.code, detail.pauses, detail.reason) == ("sandbox_unavailable", True, StatusReason.GRADER_FAILED)
    assert "podium doctor" in (detail.fix or "")


def test_what_nobody_foresaw_is_a_crash() -> None:
    detail = named_failure(ZeroDivisionError("division by zero")).detail
    assert detail == FailureDetail(
        reason=StatusReason.TRAINER_CRASHED,
        code="trainer_crashed",
        message="The trainer crashed: ZeroDivisionError: division by zero",
        fix=detail.fix,
        retryable=True,
    )


RIGHT = Scored({"a": Grade(GradeOutcome.SCORED, 1.0)}, 1.0)
WRONG = Scored({"a": Grade(GradeOutcome.USER_ERROR, message="KeyError: 'x'")}, None)
SILENT = Scored({"a": Grade(GradeOutcome.NO_ANSWER)}, None)


def test_a_step_with_more_errors_than_the_rule_allows_is_not_taken() -> None:
    watch = GradingWatch(GradingSpec(max_error_share=0.2))
    watch.check([WRONG, RIGHT, RIGHT, RIGHT, RIGHT], step=1)
    with pytest.raises(GradingUnreliable, match=r"1 of 3 rollouts of step 2.*KeyError: 'x'"):
        watch.check([WRONG, RIGHT, RIGHT], step=2)


def test_a_step_in_which_no_rollout_has_a_reward_is_a_bad_one() -> None:
    watch = GradingWatch(GradingSpec(max_bad_steps=2))
    watch.check([SILENT, SILENT], step=1)
    with pytest.raises(GradingUnreliable, match="answered None"):
        watch.check([SILENT, SILENT], step=2)


def test_bad_steps_count_only_while_they_follow_each_other() -> None:
    watch = GradingWatch(GradingSpec(max_error_share=0.9, bad_step_error_share=0.5, max_bad_steps=5))
    for step in range(4):
        watch.check([WRONG, WRONG, RIGHT], step=step)
    watch.check([WRONG, RIGHT], step=4)  # half is not more than half: the count starts again
    for step in range(5, 9):
        watch.check([WRONG, WRONG, RIGHT], step=step)
    with pytest.raises(GradingUnreliable, match="5 steps running"):
        watch.check([WRONG, WRONG, RIGHT], step=9)


@pytest.mark.parametrize(
    ("outcome", "retryable"), [(GradeOutcome.USER_ERROR, False), (GradeOutcome.INFRASTRUCTURE_ERROR, True)]
)
def test_at_the_baseline_a_reward_that_fails_is_final_and_graders_that_are_down_are_not(
    outcome: GradeOutcome, retryable: bool
) -> None:
    failed = Scored({"a": Grade(outcome, message="gave no answer")}, None)
    with pytest.raises(RewardUnusable) as raised:
        require_rewards([failed, failed], step=0)
    assert raised.value.detail.retryable is retryable


def test_of_equally_good_evaluations_the_earliest_is_best() -> None:
    assert Progress(scores={"baseline": 0.5, "step-2": 0.7, "final": 0.7}).best_evaluation == "step-2"
    assert Progress(scores={"baseline": None}).best_evaluation is None
