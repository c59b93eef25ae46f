"""Rewards for how long a completion is, and penalties for going on."""

from core.builtin_rewards.shape import Length, Overlong, Repetition
from worker.grading.builtins.outcomes import Score, Scorer, read_after
from worker.grading.grades import Rollout


def length(parameters: Length) -> Scorer:
    low = parameters.target or parameters.min
    high = parameters.target or parameters.max

    def score(rollout: Rollout) -> Score:
        if parameters.unit == "tokens":
            size = len(rollout.completion_ids)
        else:
            size = len(read_after(rollout.completion, parameters.after))
        if low is not None and size < low:
            missed = (low - size) / low
        elif high is not None and size > high:
            missed = (size - high) / high
        else:
            return Score(1.0)
        return Score(0.0 if parameters.shape == "step" else max(0.0, 1.0 - missed))

    return score


def overlong(parameters: Overlong) -> Scorer:
    """As `trl.rewards.get_soft_overlong_punishment`."""
    allowed = parameters.max - parameters.buffer

    def score(rollout: Rollout) -> Score:
        size = len(rollout.completion_ids)
        if size <= allowed:
            return Score(0.0)
        return Score((allowed - size) / parameters.buffer if size <= parameters.max else -1.0)

    return score


def repetition(parameters: Repetition) -> Scorer:
    """As `trl.rewards.get_repetition_penalty_reward`."""

    def score(rollout: Rollout) -> Score:
        ids, size = rollout.completion_ids, parameters.ngram
        ngrams = [tuple(ids[place : place + size]) for place in range(len(ids) - size + 1)]
        repeated = 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0
        return Score(repeated * parameters.max_penalty if repeated else 0.0)

    return score
