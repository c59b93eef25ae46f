"""The fast path trains as TRL does, to the last digits of double precision, with the passes that it leaves out."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from tests.worker.training.doubles import double_precision
from tests.worker.training.scripted_rollouts import GROUP, Trained, train
from worker.training.fast_path import support
from worker.training.fast_path.support import Saving
from worker.training.fast_path.trainer import FastPathTrainer

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")  # TRL calls it experimental

EQUAL = 1e-12
LOSS_TYPES = ["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"]
SCHEDULES: dict[str, dict[str, Any]] = {
    "aligned": {"gradient_accumulation_steps": 2},
    "two steps a generation": {"gradient_accumulation_steps": 1, "steps_per_generation": 2},
    "two iterations": {"gradient_accumulation_steps": 2, "num_iterations": 2},
    "micro-batches that straddle steps": {"gradient_accumulation_steps": 2, "steps_per_generation": 3},
}


class ExactTrainer(GRPOTrainer):
    """TRL, but that a group of equal rewards has no advantage: its rounding gives one to most such groups."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        (rewards,) = (list(values)[-len(inputs) :] for values in self._logs["rewards"].values())
        for start in range(0, len(rewards), GROUP):
            if len(set(rewards[start : start + GROUP])) == 1:
                output["advantages"][start : start + GROUP] = 0
        return output


@pytest.fixture(scope="module", autouse=True)
def doubles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with double_precision(tmp_path_factory.mktemp("doubles")):
        yield
    torch.set_num_threads(threads)


def sparse(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """One in seven is right: many groups are silent, and some steps have one group that is not."""
    return [float(sum(completion) % 7 == 3) for completion in completion_ids]


def graded(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    return [(sum(completion) % 10) / 10 for completion in completion_ids]


def equal(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    return [0.9] * len(completion_ids)


def equal_at_last(completion_ids: Sequence[Sequence[int]], trainer_state: Any, **_: Any) -> list[float]:
    """Three steps that teach, then none: the moments go on alone."""
    return graded(completion_ids) if trainer_state.global_step < 3 else equal(completion_ids)


def one_group(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    return [float(number == 5) for number in range(len(completion_ids))]


def some_ungraded(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float | None]:
    return [None if sum(completion) % 5 == 0 else float(sum(completion) % 3) for completion in completion_ids]


def both(
    tmp_path: Path, reward: Any, stock: type[GRPOTrainer] = ExactTrainer, **changes: Any
) -> tuple[Trained, Trained]:
    theirs = train(stock, tmp_path, reward=reward, **changes)
    ours = train(FastPathTrainer, tmp_path, reward=reward, **changes)
    return ours, theirs


def assert_same(ours: Trained, theirs: Trained) -> None:
    assert ours.distance(theirs) < EQUAL
    for mine, stock in zip(ours.logs, theirs.logs, strict=True):
        for name in stock.keys() & {"loss", "grad_norm", "reward", "num_tokens", "completions/mean_length"}:
            assert mine[name] == pytest.approx(stock[name], rel=1e-6, abs=1e-7), name


def skipped(ours: Trained) -> float:
    return sum(line.get("fast/rollouts_skipped", 0) for line in ours.logs)


@pytest.mark.parametrize("schedule", ["aligned", "two steps a generation", "two iterations"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_every_loss_type_on_every_schedule(tmp_path: Path, loss_type: str, schedule: str) -> None:
    changes: dict[str, Any] = {"loss_type": loss_type, **SCHEDULES[schedule]}
    if loss_type == "luspo":
        changes["importance_sampling_level"] = "sequence"
    ours, theirs = both(tmp_path, sparse, GRPOTrainer, **changes)
    assert skipped(ours) > 0
    assert_same(ours, theirs)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw_torch"])
@pytest.mark.parametrize("reward", [graded, equal, equal_at_last, one_group, some_ungraded])
def test_whatever_the_rewards_are(tmp_path: Path, reward: Any, optimizer: str) -> None:
    ours, theirs = both(tmp_path, reward, optim=optimizer, loss_type="grpo")
    assert_same(ours, theirs)


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "bnpo"])
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"mask_truncated_completions": True}, id="truncated completions are masked"),
        pytest.param({"with_tools": True}, id="answers of tools are masked"),
        pytest.param({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8}, id="torn groups"),
        pytest.param({"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}, id="one rollout a pass"),
        pytest.param(SCHEDULES["micro-batches that straddle steps"], id="micro-batches that straddle steps"),
        pytest.param({"scale_rewards": "batch"}, id="scaled by the batch"),
        pytest.param({"scale_rewards": "none"}, id="not scaled"),
    ],
)
def test_whatever_the_batch_is_like(tmp_path: Path, loss_type: str, changes: dict[str, Any]) -> None:
    ours, theirs = both(tmp_path, sparse, loss_type=loss_type, **changes)
    assert skipped(ours) > 0
    assert_same(ours, theirs)


@pytest.mark.parametrize("full", [False, True], ids=["LoRA", "all weights"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["activations kept", "activations recomputed"])
def test_whatever_is_trained(tmp_path: Path, full: bool, checkpointing: bool) -> None:
    ours, theirs = both(tmp_path, sparse, full=full, gradient_checkpointing=checkpointing)
    assert_same(ours, theirs)


@pytest.mark.parametrize(
    ("mode", "loss_type"),
    [
        *[(mode, "dapo") for mode in ("sequence_mask", "sequence_truncate", "token_mask", "token_truncate")],
        ("token_truncate", "vespo"),
        ("sequence_mask", "grpo"),
    ],
)
def test_the_correction_of_vllms_samples_needs_no_pass(tmp_path: Path, mode: str, loss_type: str) -> None:
    changes = {"loss_type": loss_type, "vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": 1.5}
    ours, theirs = both(tmp_path, sparse, with_vllm=True, **changes)
    assert_same(ours, theirs)
    assert any(line["sampling/importance_sampling_ratio/max"] > 0 for line in theirs.logs)


def test_the_correction_keeps_its_pass_where_the_policy_moves_on(tmp_path: Path) -> None:
    ours, theirs = both(tmp_path, sparse, with_vllm=True, **SCHEDULES["two iterations"])
    assert_same(ours, theirs)


def test_with_a_kl_term_every_rollout_is_kept(tmp_path: Path) -> None:
    ours, theirs = both(tmp_path, sparse, beta=0.1, loss_type="grpo")
    assert skipped(ours) == 0
    assert Saving.SILENT_ROLLOUTS in ours.trainer.obstacles
    assert Saving.SHARED_PROMPTS not in ours.trainer.obstacles
    assert_same(ours, theirs)


def test_the_rollouts_that_a_policy_generates_stay_the_same(tmp_path: Path) -> None:
    ours, theirs = both(tmp_path, sparse, generates=True, max_steps=3)
    assert_same(ours, theirs)


def test_equal_rewards_move_nothing_where_trls_rounding_moves_all(tmp_path: Path) -> None:
    changes = {"optim": "sgd", "weight_decay": 0.0, "learning_rate": 1.0, "num_generations": 8}
    before = train(FastPathTrainer, tmp_path, reward=equal, max_steps=1, **changes | {"learning_rate": 0.0})
    ours, theirs = both(tmp_path, equal, GRPOTrainer, **changes)
    assert ours.distance(before) == 0
    assert theirs.distance(before) > 1e-7


def test_a_trl_that_is_not_known_trains_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "KNOWN_SOURCES", frozenset())
    ours, theirs = both(tmp_path, graded, GRPOTrainer)
    assert set(ours.trainer.obstacles) == set(Saving)
    assert ours.distance(theirs) == 0


def test_switched_off_it_is_trl_to_the_bit(tmp_path: Path) -> None:
    theirs = train(GRPOTrainer, tmp_path, reward=equal)
    ours = train(FastPathTrainer, tmp_path, reward=equal, trainer_arguments={"fast_path": False})
    assert ours.distance(theirs) == 0


@pytest.mark.parametrize("with_vllm", [False, True])
def test_an_audit_compares_and_changes_nothing(tmp_path: Path, with_vllm: bool) -> None:
    plain = train(FastPathTrainer, tmp_path, reward=sparse, with_vllm=with_vllm)
    audited = train(FastPathTrainer, tmp_path, reward=sparse, with_vllm=with_vllm, trainer_arguments={"audit_every": 3})
    errors = [line.get("fast/grad_relative_error") for line in audited.logs]
    assert [error is not None for error in errors] == [True, False, False, True, False, False]
    assert all(error < EQUAL for error in errors if error is not None)
    assert audited.distance(plain) == 0
    assert audited.trainer.gradient_tokens == plain.trainer.gradient_tokens


def test_an_audit_sees_a_wrong_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.training.fast_path.repacking.weight", lambda *_: 1.0)
    wrong = train(FastPathTrainer, tmp_path, reward=sparse, loss_type="grpo", trainer_arguments={"audit_every": 1})
    assert max(line["fast/grad_relative_error"] for line in wrong.logs) > 0.01


def test_an_audit_sees_a_correction_by_other_log_probabilities_than_trls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = FastPathTrainer._correct
    monkeypatch.setattr(FastPathTrainer, "_correct", lambda self, inputs, logps: right(self, inputs, logps - 0.1))
    changes = {"vllm_importance_sampling_mode": "token_truncate", "trainer_arguments": {"audit_every": 1}}
    wrong = train(FastPathTrainer, tmp_path, reward=sparse, with_vllm=True, **changes)
    assert max(line["fast/grad_relative_error"] for line in wrong.logs) > 0.01
