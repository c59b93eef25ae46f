"""How far a run has come, over all its attempts. It travels with the checkpoints."""

from collections.abc import Sequence

from pydantic import BaseModel, Field

from worker.training.rollouts import RolloutBatch, Signal
from worker.training.sampling.histories import PromptHistories
from worker.training.stop_rule import Silence


class Tally(BaseModel):
    generated_tokens: int = 0
    trained_tokens: int = 0
    """Prompt and completion tokens in forward passes that a gradient follows."""
    groups: int = 0
    silent_groups: int = 0
    rollouts: int = 0
    truncated_rollouts: int = 0
    ungraded_rollouts: int = 0
    left_out_rollouts: int = 0
    """Generated and graded, and not trained on (dynamic sampling)."""
    left_out_tokens: int = 0
    """Their part of `generated_tokens`."""
    steps_without_gradient: int = 0

    def add(self, batch: RolloutBatch, signal: Signal, advantages: Sequence[float | None]) -> None:
        """`advantages`: of each rollout; None where it is not trained on."""
        self.groups += signal.groups
        self.silent_groups += signal.silent
        self.rollouts += len(batch.completions)
        self.generated_tokens += sum(len(completion.token_ids) for completion in batch.completions)
        self.truncated_rollouts += sum(completion.is_truncated for completion in batch.completions)
        self.ungraded_rollouts += sum(score.reward is None for score in batch.scored)
        pairs = zip(batch.completions, advantages, strict=True)
        left_out = [len(completion.token_ids) for completion, advantage in pairs if advantage is None]
        self.left_out_rollouts += len(left_out)
        self.left_out_tokens += sum(left_out)

    @property
    def silent_share(self) -> float | None:
        return self.silent_groups / self.groups if self.groups else None

    @property
    def truncated_share(self) -> float | None:
        return self.truncated_rollouts / self.rollouts if self.rollouts else None


class Progress(BaseModel):
    step: int = 0
    """Optimizer steps that are done."""
    tally: Tally = Field(default_factory=Tally)
    silence: Silence = Field(default_factory=Silence)
    histories: PromptHistories = Field(default_factory=PromptHistories)
    """Of the prompts, where they are drawn by them (`worker.training.sampling`)."""
    ended_early: str | None = None
    """Why training ended before its last step by the job's own rule, once it has."""
    scores: dict[str, float | None] = Field(default_factory=dict)
    """Mean reward of each evaluation so far, by name, in order."""

    @property
    def best_evaluation(self) -> str | None:
        """The highest score; of equal ones the earliest."""
        scored = {name: score for name, score in self.scores.items() if score is not None}
        return max(scored, key=scored.__getitem__) if scored else None
