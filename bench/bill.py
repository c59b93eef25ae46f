"""The length of a measured run with our trainer, at each share of silent groups, by operation count.

    podium bench bill [--json]

The run (Qwen3-1.7B, 16 prompts x 8 rollouts, 327 + 44 tokens, vLLM) took 8,847 s with TRL's trainer. What passes do not
take stays as it was; passes take as long as their operations say. `estimate_s` is an earlier reckoning by tokens alone,
made before the trainer was: with 81 % and 100 % it has no figure. `podium bench trainer` measures the passes.
"""

import argparse
from collections.abc import Mapping
from typing import Any

from bench._table import show
from worker.training.fast_path.operations import Costs, Tree, of_padded_rows, of_trees, split_group

BILL_S = 8847
NO_GRAD_S, FORWARD_S, BACKWARD_S = 1861, 1916, 4360
FIXED_S = BILL_S - NO_GRAD_S - FORWARD_S - BACKWARD_S
GROUP, PROMPT, COMPLETION = 8, 327, 44
HIDDEN, INNER, LAYERS, HEADS, KEY_HEADS, HEAD, VOCABULARY = 2048, 6144, 28, 16, 8, 128, 151_936
"""Of Qwen3-1.7B."""
ESTIMATES_S: Mapping[int, int] = {0: 2307, 54: 1445, 80: 1029, 93: 822, 97: 758}
"""By percent of silent groups."""
SILENT = (0, 54, 80, 81, 93, 97, 100)


def main() -> None:
    parser = argparse.ArgumentParser(prog="podium bench bill")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    show("bill", [row(percent) for percent in SILENT], as_json=arguments.json)


def row(percent: int) -> dict[str, Any]:
    seconds = bill_s(percent / 100)
    return {
        "silent_percent": percent,
        "bill_s": round(seconds),
        "times_shorter": round(BILL_S / seconds, 1),
        "estimate_s": ESTIMATES_S.get(percent, "-"),
    }


def bill_s(silent: float) -> float:
    """The pass for the correction is gone; those with a gradient have the groups that are left, each as trees."""
    return FIXED_S + (1 - silent) * _operations_left() * (FORWARD_S + BACKWARD_S)


def _operations_left() -> float:
    """Of a group that teaches: ours by TRL's, on a GPU, where its head scores the labels alone."""
    attention = 2 * HIDDEN * HEADS * HEAD + 2 * HIDDEN * KEY_HEADS * HEAD
    costs = Costs(
        token=2.0 * LAYERS * (attention + 3 * HIDDEN * INNER),
        pair=4.0 * LAYERS * HEADS * HEAD,
        label=2.0 * HIDDEN * VOCABULARY,
    )
    parts = split_group(costs, PROMPT, [COMPLETION] * GROUP)
    ours = sum(of_trees(costs, [Tree(PROMPT, (COMPLETION,) * len(part))]) for part in parts)
    return ours / of_padded_rows(costs, GROUP, PROMPT + COMPLETION, GROUP * COMPLETION, is_masked=False)


if __name__ == "__main__":
    main()
