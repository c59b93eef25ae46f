"""Sample documents that several tests read."""

from typing import Any


def results_document() -> dict[str, Any]:
    """A valid `results.json` of a run that learned: 55 fixed, 7 broken of 200."""
    return {
        "job": {
            "id": "ftjob-1",
            "created_at": 1,
            "started_at": 2,
            "finished_at": 3,
            "suffix": None,
            "metadata": {},
        },
        "model": {"base": "podium/tiny", "revision": None, "method": "lora", "adapter_sha256": "0" * 64},
        "data": {
            "training_file": "file-1",
            "training_sha256": "1" * 64,
            "training_rows": 2000,
            "held_out_file": "file-2",
            "held_out_sha256": "2" * 64,
            "held_out_rows": 200,
            "overlap_rows": 0,
        },
        "rewards": [],
        "seed": 42,
        "parameters": {"spec": {}, "trainer": {}, "sha256": "3" * 64},
        "baseline": _evaluation("baseline", step=0, sampled=105, greedy=155),
        "final": _evaluation("final", step=120, sampled=153, greedy=154),
        "best": _evaluation("best", step=120, sampled=153, greedy=154),
        "evaluations": [],
        "verdict": {
            "decoding": "sampled",
            "outcome": "improved",
            "sentence": "The policy got better.",
            "tasks": 200,
            "fixed": 55,
            "broken": 7,
            "same": 138,
            "p_value": 1.2e-10,
            "change_points": 24.0,
            "mean_reward_change": 0.1,
            "mean_reward_change_ci95": [0.05, 0.15],
            "smallest_significant_fixed": 6,
        },
        "diagnostics": {
            "silent_share": 0.5,
            "steps_without_gradient": 0,
            "truncated_share": 0.0,
            "ungraded_rollouts": 0,
        },
        "time": {"total": 140.0},
        "tokens": {"generated": 100, "trained": 200},
        "cost": {"gpu_seconds": 140.0, "usd_per_hour": 0.0, "usd": 0.0, "redone_steps": 0},
        "attempts": [],
        "preemptions": 0,
        "environment": {
            "python": "3.11.7",
            "platform": "Linux",
            "device": "cpu",
            "driver": None,
            "dtype": "float32",
            "libraries": {},
        },
        "artifacts": [{"name": "adapter/adapter_config.json", "size_bytes": 1, "sha256": "4" * 64}],
    }


def _evaluation(name: str, *, step: int, sampled: int, greedy: int) -> dict[str, Any]:
    return {"name": name, "step": step, "sampled": _score(sampled), "greedy": _score(greedy)}


def _score(passed: int) -> dict[str, Any]:
    return {
        "n": 200,
        "passed": passed,
        "errors": 0,
        "pass_rate": passed / 200,
        "pass_rate_ci95": [0.0, 1.0],
        "mean_reward": passed / 200,
        "truncated": 0,
    }
