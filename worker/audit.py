"""The resume audit: what an attempt does again, compared number by number with what an earlier one recorded.

On a CPU the two are equal to the last bit, in one process and in two. Where they are not, somebody should know which
steps and which numbers: another kernel or library, a GPU that sums in another order, several that add up their
gradients, vLLM's scheduler, or a fault of the resume itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from core.metric_names import tells_time
from core.spec import JobSpec

MOST_DIFFERENCES = 20

Metrics = Mapping[str, float | None]


@dataclass(slots=True)
class ResumeAudit:
    """Of one attempt. Steps may be entered again: a transaction that failed is repeated."""

    differences: dict[int, dict[str, list[float | None]]] = field(default_factory=dict)
    """By step and metric: recorded, replayed."""
    compared: set[int] = field(default_factory=set)

    def compare(self, step: int, recorded: Metrics, replayed: Metrics) -> None:
        self.compared.add(step)
        names = {name for name in (*recorded, *replayed) if not tells_time(name)}
        different = sorted(name for name in names if recorded.get(name) != replayed.get(name))
        self.differences.pop(step, None)
        if different:
            self.differences[step] = {name: [recorded.get(name), replayed.get(name)] for name in different}

    def report(self) -> dict[str, Any]:
        first = sorted(self.differences)[:MOST_DIFFERENCES]
        return {
            "steps_compared": len(self.compared),
            "steps_equal": len(self.compared) - len(self.differences),
            "exact": not self.differences,
            "differences": {str(step): self.differences[step] for step in first},
        }

    def sentence(self, spec: JobSpec) -> str:
        """What was found; and with vLLM or several GPUs, whatever that is, what cannot be promised."""
        reason = _ON_ONE_DEVICE if self.differences else ""
        if spec.resources.gpus > 1:
            reason = _on_several_gpus(spec.resources.gpus)
        if spec.hyperparameters.use_vllm:
            reason = _WITH_VLLM
        return f"Resume audit: {self._finding()} {reason}".rstrip()

    def _finding(self) -> str:
        if not self.compared:
            return "no recorded step is done again, so there is nothing to compare."
        steps = f"{len(self.compared)} step{'s' if len(self.compared) > 1 else ''} done again"
        if not self.differences:
            return f"{steps}, every number equal to the last bit."
        return f"{len(self.differences)} of {steps} came out differently."


def _on_several_gpus(gpus: int) -> str:
    return (
        f"{gpus} GPUs add up their gradients in an order that may change, so equal bits are not promised; processes on "
        "a CPU of the same kind should give them."
    )


_WITH_VLLM = (
    "With vLLM equal bits cannot be promised, because it batches requests as they come, and sums depend on the batch."
)
_ON_ONE_DEVICE = "A GPU may sum in another order; on a CPU of the same kind this should not be."
