"""How many rows a job trains on and how many tasks it holds out, and how many steps that makes."""

from dataclasses import dataclass

from core.db.models import File
from core.spec import Hyperparameters
from core.split import held_out_prompts

DEFAULT_EPOCHS = 1.0


@dataclass(frozen=True, slots=True)
class Split:
    training_rows: int
    """Exact with a held-out file, or when no prompt repeats; else what the prompts' share is on average."""
    held_out_tasks: int
    """Different prompts: rows with the same one are one task."""
    held_out_rows: int
    """As exact as `training_rows`."""

    @classmethod
    def of_files(cls, training: File, held_out: File | None, fraction: float) -> "Split":
        """Without a file of its own, `fraction` of the training file's prompts is held out (`core.split`)."""
        rows, prompts = training.rows or 0, training.distinct_prompts or 0
        if held_out is not None:
            return cls(rows, held_out.distinct_prompts or 0, held_out.rows or 0)
        if not prompts:
            return cls(rows, 0, 0)
        tasks = held_out_prompts(prompts, fraction)
        held_out_rows = round(rows * tasks / prompts)
        return cls(rows - held_out_rows, tasks, held_out_rows)


def total_steps(hyperparameters: Hyperparameters, training_rows: int) -> int:
    """`max_steps`, or as many optimizer steps as show every row `n_epochs` times."""
    if hyperparameters.max_steps is not None:
        return hyperparameters.max_steps
    epochs = hyperparameters.n_epochs or DEFAULT_EPOCHS
    batches = max(1, round(epochs * training_rows / hyperparameters.prompts_per_step))
    return batches * hyperparameters.num_iterations
