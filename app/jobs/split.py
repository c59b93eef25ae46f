"""How many rows a job trains on and how many tasks it holds out, and how many steps that makes."""

from dataclasses import dataclass

from core.db.models import File
from core.spec import Hyperparameters

DEFAULT_EPOCHS = 1.0


@dataclass(frozen=True, slots=True)
class Split:
    training_rows: int
    held_out_tasks: int

    @classmethod
    def of_files(cls, training: File, held_out: File | None, fraction: float) -> "Split":
        """Without a file of its own, `fraction` of the training file is held out, rounded to whole rows."""
        rows = training.rows or 0
        if held_out is not None:
            return cls(rows, held_out.rows or 0)
        tasks = round(rows * fraction)
        return cls(rows - tasks, tasks)


def total_steps(hyperparameters: Hyperparameters, training_rows: int) -> int:
    """`max_steps`, or as many optimizer steps as show every row `n_epochs` times."""
    if hyperparameters.max_steps is not None:
        return hyperparameters.max_steps
    epochs = hyperparameters.n_epochs or DEFAULT_EPOCHS
    batches = max(1, round(epochs * training_rows / hyperparameters.prompts_per_step))
    return batches * hyperparameters.num_iterations
