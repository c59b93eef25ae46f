"""TRL's numbers on rewards and lengths, over everything that was generated for a step.

TRL counts what it makes a batch of. Where silent groups were replaced, that would flatter: the batch is chosen by its
rewards, and only the whole draw says how good the policy is.
"""

from collections.abc import Sequence

import torch
from trl.trainer.utils import nanstd

from worker.training.rollouts import RolloutBatch


def trl_metrics(batch: RolloutBatch, terms: Sequence[str], weights: torch.Tensor) -> dict[str, float]:
    """By TRL's names and formulas (`_generate_and_score_completions`, `_generate`). `weights`: (terms,)."""
    return {**_reward_metrics(batch, terms, weights.cpu()), **_length_metrics(batch)}


def _reward_metrics(batch: RolloutBatch, terms: Sequence[str], weights: torch.Tensor) -> dict[str, float]:
    lines = [[score.value(term) for term in terms] for score in batch.scored]
    values = torch.tensor([[torch.nan if value is None else value for value in line] for line in lines])
    rewards = (values * weights).nansum(dim=1)
    rewards[values.isnan().all(dim=1)] = torch.nan
    metrics = {"reward": rewards.nanmean().item(), "reward_std": nanstd(rewards).item()}
    for term, column in zip(terms, values.unbind(dim=1), strict=True):
        metrics[f"rewards/{term}/mean"] = column.nanmean().item()
        metrics[f"rewards/{term}/std"] = nanstd(column).item()
    return metrics


def _length_metrics(batch: RolloutBatch) -> dict[str, float]:
    lengths = torch.tensor([float(len(completion.token_ids)) for completion in batch.completions])
    truncated = torch.tensor([completion.is_truncated for completion in batch.completions])
    ended = lengths[~truncated] if not truncated.all() else torch.zeros(1)
    named = {"length": lengths, "terminated_length": ended}
    return {
        "completions/clipped_ratio": truncated.float().mean().item(),
        **{f"completions/mean_{name}": values.mean().item() for name, values in named.items()},
        **{f"completions/min_{name}": values.min().item() for name, values in named.items()},
        **{f"completions/max_{name}": values.max().item() for name, values in named.items()},
    }
