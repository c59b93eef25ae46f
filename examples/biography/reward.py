"""The reward function of the biography task: the share of the five fields that the answer gets right."""

from __future__ import annotations

import json


def reward(completion: str, record: dict[str, str | None]) -> float:
    """Return 0.2 for each right field, hence 1.0 only for a perfect record.

    `completion` is the model's answer; `record` is the row's column of that name. A null is right where the
    record has null. An answer that is not a JSON object with exactly the record's keys earns nothing.
    """
    try:
        answer = json.loads(completion)
    except (ValueError, RecursionError):
        return 0.0
    if not isinstance(answer, dict) or answer.keys() != record.keys():
        return 0.0
    return sum(1 for field, gold in record.items() if answer[field] == gold) / len(record)
