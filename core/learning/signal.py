"""Whether there was anything to learn from: silent groups, cut completions, failing graders, too little data."""

from collections.abc import Callable, Iterator

from core.learning.finding import LearningFinding, Severity, held_out_improved, rises
from core.learning.numbers import FEWEST_STEPS, RunNumbers

MANY_SILENT = 0.8
"""Share of groups: from here on most of what was generated taught nothing."""
MANY_STEPS_WITHOUT_GRADIENT = 0.5
MANY_TRUNCATED = 0.3
NEARLY_ALL_TRUNCATED = 0.9
MANY_GRADER_ERRORS = 0.05
MOVES = 0.03
"""Of the reward: a smaller change is none, however certain."""
FEW_TASKS = 50
"""Held-out tasks: with fewer, less than about 15 points of change go unseen."""


def _was_learned(run: RunNumbers) -> bool:
    """By any sign of it."""
    gain = run.gain()
    return (gain is not None and gain.mean > 0) or rises(run.change("signal/silent_all_right"))


def nothing_left_to_learn(run: RunNumbers) -> Iterator[LearningFinding]:
    """A remark where the run has learned it; a warning where it was so from the beginning."""
    share = run.late("signal/silent_all_right")
    if share is None or share < MANY_SILENT:
        return
    yield LearningFinding(
        "all_right",
        Severity.INFO if _was_learned(run) else Severity.WARNING,
        f"In {share:.0%} of the groups every completion was right, so they taught nothing.",
        "Stop here, or take out the prompts that are always solved.",
        "Harder prompts. The model already does what this reward asks for.",
        run.series("signal/silent_all_right").since(lambda value: value >= MANY_SILENT),
        {"silent_all_right": share},
    )


def nothing_ever_right(run: RunNumbers) -> Iterator[LearningFinding]:
    share = run.late("signal/silent_all_wrong")
    if share is None or share < MANY_SILENT:
        return
    size = run.asked.num_generations
    yield LearningFinding(
        "all_wrong",
        Severity.ERROR,
        f"In {share:.0%} of the groups no completion reached the pass threshold and all were worth the same, so they "
        "taught nothing.",
        "Read some rollouts: a format that the reward insists on is the usual cause. Else raise num_generations "
        f"({size}).",
        "Fine-tune on a few hundred good answers first (SFT), or begin with easier prompts.",
        run.series("signal/silent_all_wrong").since(lambda value: value >= MANY_SILENT),
        {"silent_all_wrong": share, "num_generations": size},
    )


def reward_cannot_separate(run: RunNumbers) -> Iterator[LearningFinding]:
    """Silent, though neither kind of silence is the rule among them: the reward knows too few values."""
    silent, right = run.late("signal/silent_share"), run.late("signal/silent_all_right")
    wrong = run.late("signal/silent_all_wrong")
    if silent is None or silent < MANY_SILENT or max(right or 0.0, wrong or 0.0) >= MANY_SILENT * silent:
        return
    yield LearningFinding(
        "reward_cannot_separate",
        Severity.WARNING,
        f"{silent:.0%} of the groups had one reward for all their completions: {right or 0:.0%} right, "
        f"{wrong or 0:.0%} not.",
        "Let the reward give part of the points for part of the work, so that two completions seldom get the same.",
        "A signal probe (POST /v1/signal_probes) shows before a run which prompts disagree.",
        run.series("signal/silent_share").since(lambda value: value >= MANY_SILENT),
        {"silent_share": silent, "silent_all_right": right, "silent_all_wrong": wrong},
    )


def steps_without_gradient(run: RunNumbers) -> Iterator[LearningFinding]:
    norms = run.series("grad_norm")
    still = [step for step, norm in zip(norms.steps, norms.values, strict=True) if norm == 0.0]
    share = len(still) / len(norms) if len(norms) >= FEWEST_STEPS else 0.0
    if share < MANY_STEPS_WITHOUT_GRADIENT:
        return
    yield LearningFinding(
        "steps_without_gradient",
        Severity.WARNING,
        f"{len(still)} of {len(norms)} steps had a gradient of exactly 0: they were paid for and changed nothing.",
        "Raise prompts_per_step, so that some group of each step disagrees, or stop the run when it falls silent.",
        "Prompts that the model solves in some of its tries.",
        still[0],
        {"steps": len(norms), "without_gradient": len(still)},
    )


def truncated(run: RunNumbers) -> Iterator[LearningFinding]:
    """A model that ended its answers once knows how: only one that never did lacks the token."""
    share = run.late("completions/clipped_ratio")
    if share is None or share < MANY_TRUNCATED:
        return
    limit, early = run.asked.max_completion_length, run.early("completions/clipped_ratio") or 0.0
    never = min(early, share) >= NEARLY_ALL_TRUNCATED
    yield LearningFinding(
        "template_never_stops" if never else "truncated",
        Severity.ERROR if never else Severity.WARNING,
        f"{share:.0%} of the completions were cut at {limit} tokens before they ended.",
        "Check that the chat template's end token is one that the model knows and was trained with."
        if never
        else f"Raise max_completion_length ({limit}).",
        "A penalty that sets in before the limit (the built-in reward `overlong`).",
        run.series("completions/clipped_ratio").since(lambda value: value >= MANY_TRUNCATED),
        {"truncated_share": share, "max_completion_length": limit},
    )


def grader_errors(run: RunNumbers) -> Iterator[LearningFinding]:
    share = run.late("grader/error_share")
    if share is None or share < MANY_GRADER_ERRORS:
        return
    yield LearningFinding(
        "grader_errors",
        Severity.WARNING,
        f"{share:.0%} of the rollouts could not be graded and were left out.",
        "Read the errors of the rollouts (GET .../rollouts), and mend the reward: `podium reward test` runs it here.",
        "A new version of the reward; stored rollouts can be scored with it again.",
        run.series("grader/error_share").since(lambda value: value >= MANY_GRADER_ERRORS),
        {"error_share": share},
    )


def nothing_happened(run: RunNumbers) -> Iterator[LearningFinding]:
    """There was signal, and the reward did not move."""
    change, silent = run.change("reward"), run.late("signal/silent_share")
    if change is None or silent is None or silent >= MANY_SILENT or held_out_improved(run):
        return
    if abs(change.z) >= 2.0 and abs(change.difference) >= MOVES * abs(change.early):
        return
    steps = len(run.series("reward"))
    yield LearningFinding(
        "reward_did_not_move",
        Severity.INFO,
        f"{1 - silent:.0%} of the groups disagreed, and yet the reward stayed at {change.late:.3g} over {steps} steps.",
        f"Raise learning_rate ({run.asked.learning_rate:g}) by a factor of 3 to 10, or train for longer.",
        "A larger rank of the adapter, if a higher rate does not move it either.",
        None,
        {"reward_early": change.early, "reward_late": change.late, "silent_share": silent, "steps": steps},
    )


def held_out_ungraded(run: RunNumbers) -> Iterator[LearningFinding]:
    if not run.held_out or any(one.tasks for one in run.held_out):
        return
    yield LearningFinding(
        "held_out_ungraded",
        Severity.ERROR,
        "Not one held-out answer could be graded, so nothing can be said of what the model learned.",
        "Mend the reward: `podium reward test` runs it on rows of the file.",
        "Stored rollouts can be scored again with a new version of the reward.",
        run.held_out[0].step,
        {"evaluations": len(run.held_out)},
    )


def too_few_tasks(run: RunNumbers) -> Iterator[LearningFinding]:
    tasks = max((one.tasks for one in run.held_out), default=0)
    if not 0 < tasks < FEW_TASKS:
        return
    yield LearningFinding(
        "few_held_out_tasks",
        Severity.INFO,
        f"{tasks} held-out task{'s' if tasks > 1 else ''} can show only a large change.",
        "Give a validation file with 100 rows or more.",
        "Several samples per task (evaluation.samples_per_task) narrow the interval of the mean reward.",
        None,
        {"tasks": tasks},
    )


RULES: tuple[Callable[[RunNumbers], Iterator[LearningFinding]], ...] = (
    nothing_left_to_learn,
    nothing_ever_right,
    reward_cannot_separate,
    steps_without_gradient,
    truncated,
    grader_errors,
    nothing_happened,
    held_out_ungraded,
    too_few_tasks,
)
