"""Requests that several tests send."""

from typing import Any

from fastapi.testclient import TestClient

ROWS = b'{"prompt": "2+2?", "answer": "4"}\n{"prompt": "3+3?", "answer": "6"}\n'
REWARD = "def reward(completion, answer):\n    return float(answer in completion)\n"


def upload(
    client: TestClient,
    content: bytes = ROWS,
    *,
    filename: str = "rows.jsonl",
    purpose: str = "fine-tune",
    headers: dict[str, str] | None = None,
) -> Any:
    files = {"file": (filename, content)}
    return client.post("/v1/files", files=files, data={"purpose": purpose}, headers=headers)


def problems(response: Any) -> dict[str, str]:
    """Field to code of everything that an error names."""
    return {problem["field"]: problem["code"] for problem in response.json()["error"]["errors"]}
