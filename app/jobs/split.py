"""How many rows a job trains on and how many tasks it holds out, and how many steps that makes."""

from dataclasses import dataclass

from core.db.models import File
from core.spec import Hyperparameters
from core.split import held_out_prompts

DEFAULT_EPOCHS = 1.0


@dataclass(frozen=True, slots=True)
class Split:
    training_rows: int
    held_out_tasks: int
    """Exact with a file of its own, or when no prompt repeats; else the share that its prompts have on average."""

    @classmethod
    def of_files(cls, training: File, held_out: File | None, fraction: float) -> "Split":
        """Without a file of its own, `fraction` of the training file's prompts is held out (`core.split`)."""
        rows, prompts = training.rows or 0, training.distinct_prompts or 0
        if held_out is not None:
            return cls(rows, held_out.rows or 0)
        if not prompts:
            return cls(rows, 0)
        tasks = round(rows * held_out_prompts(prompts, fraction) / prompts)
        return cls(rows - tasks, tasks)


def total_steps(hyperparameters: Hyperparameters, training_rows: int) -> int:
    """`max_steps`, or as many optimizer steps as show every row `n_epochs` times."""
    if hyperparameters.max_steps is not None:
        return hyperparameters.max_steps
    epochs = hyperparameters.n_epochs or DEFAULT_EPOCHS
    batches = max(1, round(epochs * training_rows / hyperparameters.prompts_per_step))
    return batches * hyperparameters.num_iterations
