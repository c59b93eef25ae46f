"""Whether the policy stayed healthy: finite numbers, entropy, gradients, one policy in sampler and trainer."""

from collections.abc import Callable, Iterator
from statistics import median

from core.learning.finding import CERTAIN, LearningFinding, Severity, rises
from core.learning.numbers import FEWEST_STEPS, RunNumbers

ENTROPY_LEFT = 0.25
"""Of what it was: below it the samples of a group are hardly different any more."""
LOW_ENTROPY = 0.1
"""Nats per token. A policy that was sure of itself from the start has not collapsed."""
GAP_IN_LOGPROBS = 0.5
"""Nats: between sampler and trainer, mean over the tokens; rounding in bf16 stays well below a tenth of it."""
LOOPING = 0.2
"""Size after zlib over size before; prose is near 0.5."""
WILD_GRADIENT = 20.0
"""Times the gradient norm of the beginning."""
CLIPPED = 1.0
"""TRL's max_grad_norm: below it nothing is even clipped, however small the norm was before."""
FAR_FROM_BASE = 0.5
"""Nats per token, as TRL estimates it (Schulman 2020, "Approximating KL Divergence", k3). Of the recorded runs a
healthy one stays below 0.1; one that has come to answer every prompt with the same text is at 0.6.
"""
NO_DISTANCE = 1e-8
"""Nats per token: log-probabilities that differ by 1e-4, less than one update of any use changes them."""


def not_a_number(run: RunNumbers) -> Iterator[LearningFinding]:
    names = ("loss", "grad_norm")
    lost = [one.step for one in run.steps if any(name in one.metrics and one.metrics[name] is None for name in names)]
    if not lost:
        return
    yield LearningFinding(
        "not_a_number",
        Severity.ERROR,
        f"Loss or gradient of {len(lost)} steps was not a finite number.",
        "Lower learning_rate, and look at what the reward returned in the step before the first.",
        "A branch from a checkpoint before that step.",
        lost[0],
        {"steps": len(lost)},
    )


def entropy_collapse(run: RunNumbers) -> Iterator[LearningFinding]:
    change = run.change("entropy")
    if change is None or change.early < LOW_ENTROPY or change.ratio > ENTROPY_LEFT or change.z > -CERTAIN:
        return
    if rises(run.change("signal/silent_all_right")):
        return  # sure of what is right: that is success
    yield LearningFinding(
        "entropy_collapse",
        Severity.WARNING,
        f"Entropy fell from {change.early:.3g} to {change.late:.3g} nats per token: the completions of a group are "
        "hardly different any more.",
        f"Lower learning_rate ({run.asked.learning_rate:g}), or set beta above 0.",
        "A higher temperature, or a reward that also pays for what is different.",
        run.series("entropy").since(lambda value: value <= ENTROPY_LEFT * change.early),
        {"entropy_early": change.early, "entropy_late": change.late},
    )


def reward_fell(run: RunNumbers) -> Iterator[LearningFinding]:
    change = run.change("reward")
    if change is None or change.z > -CERTAIN:
        return
    yield LearningFinding(
        "reward_fell",
        Severity.ERROR,
        f"The reward fell from {change.early:.3g} to {change.late:.3g}: training made the model worse.",
        f"Lower learning_rate ({run.asked.learning_rate:g}) by a factor of 3 to 10.",
        "The best checkpoint: GET .../checkpoints names it, and a branch can begin from it.",
        run.series("reward").late_from,
        {"reward_early": change.early, "reward_late": change.late},
    )


def wild_gradient(run: RunNumbers) -> Iterator[LearningFinding]:
    change = run.change("grad_norm")
    if change is None or change.early == 0 or change.ratio < WILD_GRADIENT or change.late < CLIPPED:
        return
    yield LearningFinding(
        "gradient_exploded",
        Severity.ERROR,
        f"The gradient norm rose from {change.early:.3g} to {change.late:.3g}.",
        f"Lower learning_rate ({run.asked.learning_rate:g}) or max_grad_norm.",
        "A branch from the best checkpoint, with the lower rate.",
        run.series("grad_norm").late_from,
        {"grad_norm_early": change.early, "grad_norm_late": change.late},
    )


def stale_sampler(run: RunNumbers) -> Iterator[LearningFinding]:
    gap = run.late("sampling/sampling_logp_difference/mean")
    if gap is None or gap < GAP_IN_LOGPROBS:
        return
    yield LearningFinding(
        "sampler_differs",
        Severity.ERROR,
        f"Sampler and trainer disagree by {gap:.2g} nats per token: what was sampled is not what was trained.",
        "Check the versions of vLLM and transformers, and that the weights reach the sampler.",
        "The same job with use_vllm off, to see whether the difference goes.",
        run.series("sampling/sampling_logp_difference/mean").since(lambda value: value >= GAP_IN_LOGPROBS),
        {"logp_difference": gap},
    )


def kl_runs_away(run: RunNumbers) -> Iterator[LearningFinding]:
    """By every step of the end, not by their mean: the estimate's tail is long, and one token in it can be a mean."""
    kl = run.series("kl")
    if len(kl) < FEWEST_STEPS or min(kl.late) < FAR_FROM_BASE:
        return
    yield LearningFinding(
        "kl_runs_away",
        Severity.WARNING,
        f"KL to the base stays above {FAR_FROM_BASE:g} nats per token (now {median(kl.late):.2g}): what the policy "
        "writes, the base hardly ever would.",
        f"Raise beta, or lower learning_rate ({run.asked.learning_rate:g}).",
        "The best checkpoint, if it is an earlier one; rollouts show whether the language suffers.",
        kl.since(lambda value: value >= FAR_FROM_BASE),
        {"kl_early": median(kl.early), "kl_late": median(kl.late)},
    )


def kl_of_nothing(run: RunNumbers) -> Iterator[LearningFinding]:
    """The policy has moved, since it earns more, and yet is where it was: it is compared with itself."""
    kl = run.series("kl")
    if len(kl) < FEWEST_STEPS or max(kl.late) >= NO_DISTANCE or not rises(run.change("reward")):
        return
    yield LearningFinding(
        "kl_stays_zero",
        Severity.WARNING,
        "The reward rose, and KL to the base stayed 0: what stands for the base is the policy itself, so beta holds "
        "nothing back.",
        "Compare the library versions in results.json with those in constraints.txt.",
        "beta 0, which holds back as much and spares the pass.",
        kl.steps[0],
        {"kl_late": max(kl.late)},
    )


def repeats_itself(run: RunNumbers) -> Iterator[LearningFinding]:
    change = run.change("completions/compressed_share")
    if change is None or change.late > LOOPING or change.ratio > 0.5 or change.z > -CERTAIN:
        return
    yield LearningFinding(
        "repetition",
        Severity.WARNING,
        f"Completions repeat themselves: zlib leaves {change.late:.0%} of their size ({change.early:.0%} before).",
        "Add the built-in reward `repetition` as a term, or lower learning_rate.",
        "A shorter max_completion_length, if loops run into the limit.",
        run.series("completions/compressed_share").since(lambda value: value <= LOOPING),
        {"compressed_early": change.early, "compressed_late": change.late},
    )


RULES: tuple[Callable[[RunNumbers], Iterator[LearningFinding]], ...] = (
    not_a_number,
    entropy_collapse,
    reward_fell,
    wild_gradient,
    stale_sampler,
    kl_runs_away,
    kl_of_nothing,
    repeats_itself,
)
