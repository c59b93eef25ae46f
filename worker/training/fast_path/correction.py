"""The importance-sampling correction of vLLM's samples, from the gradient pass's own log-probabilities."""

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Correction:
    """TRL's settings `vllm_importance_sampling_mode`, `..._clip_min` and `..._clip_max`."""

    mode: str
    clip_min: float | None
    clip_max: float | None

    @property
    def is_by_sequence(self) -> bool:
        return self.mode.startswith("sequence")

    def ratio(self, logps: torch.Tensor, sampling_logps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(rows, tokens), or (rows, 1) by sequence: as in `GRPOTrainer._generate_and_score_completions`.

        A token that vLLM could not score (NaN) is not corrected.
        """
        difference = torch.nan_to_num((logps - sampling_logps) * mask, nan=0.0)
        if self.is_by_sequence:
            difference = difference.sum(dim=-1, keepdim=True)
        ratio = torch.exp(difference)
        if self.mode.endswith("truncate"):
            return torch.clamp(ratio, min=self.clip_min, max=self.clip_max)
        lowest = -math.inf if self.clip_min is None else self.clip_min
        highest = math.inf if self.clip_max is None else self.clip_max
        return ratio.masked_fill((ratio < lowest) | (ratio > highest), 0.0)

    def metrics(
        self, ratio: torch.Tensor, logps: torch.Tensor, sampling_logps: torch.Tensor, mask: torch.Tensor
    ) -> dict[str, float]:
        """TRL's names, over the rollouts that are trained on."""
        difference = (logps - sampling_logps).abs()[mask.bool()]
        difference = difference[~difference.isnan()]
        ratios = ratio[mask.bool().any(dim=1)] if self.is_by_sequence else ratio[mask.bool()]
        found = {}
        if difference.numel():
            found["sampling/sampling_logp_difference/mean"] = difference.mean().item()
            found["sampling/sampling_logp_difference/max"] = difference.max().item()
        if ratios.numel():
            found["sampling/importance_sampling_ratio/min"] = ratios.min().item()
            found["sampling/importance_sampling_ratio/mean"] = ratios.mean().item()
            found["sampling/importance_sampling_ratio/max"] = ratios.max().item()
        return found
