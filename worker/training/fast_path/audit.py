"""The fast gradient beside TRL's own, on a live batch, leaving the run as it was."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Gradients = list[torch.Tensor | None]


@contextmanager
def aside(trainer: Any) -> Iterator[None]:
    """What is done inside leaves no trace in gradients, metrics and random states."""
    parameters = _trained(trainer.model)
    kept = [parameter.grad for parameter in parameters]
    metrics = {name: list(values) for name, values in trainer._metrics["train"].items()}
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient
        trainer._metrics["train"].clear()
        trainer._metrics["train"].update(metrics)


def gradients_of(model: torch.nn.Module, run: Callable[[], None]) -> Gradients:
    """What `run` adds to the gradients of `model`, whose own are lost."""
    parameters = _trained(model)
    for parameter in parameters:
        parameter.grad = None
    run()
    return [parameter.grad for parameter in parameters]


def relative_error(ours: Gradients, theirs: Gradients) -> float:
    """Norm of the difference by norm of the latter; 0 where both are 0."""
    difference = reference = 0.0
    for mine, stock in zip(ours, theirs, strict=True):
        one = torch.zeros(()) if mine is None else mine.double()
        other = torch.zeros(()) if stock is None else stock.double()
        difference += (one - other).square().sum().item()
        reference += other.square().sum().item()
    if reference == 0:
        return 0.0 if difference == 0 else float("inf")
    return float((difference / reference) ** 0.5)


def _trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
