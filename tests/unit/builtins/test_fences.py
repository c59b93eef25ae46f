"""Markdown fences in completions."""

import pytest

from worker.grading.builtins.outcomes import last_fence


@pytest.mark.parametrize(
    ("text", "fence"),
    [
        ("no fence", None),
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```\na\n```\n```\nb\n```  \nDone", "b\n"),
        ("```\na\n```\nand\n```\nnever closed", "a\n"),
        ("```md\n```python\nx\n```\n", "```python\nx\n"),
        ("```\n```", ""),
        ("```a`b\nx\n```\ny\n```", "y\n"),
        (" ```\nx\n```", None),
        ("```\r\nx\r\n```\r\n", "x\r\n"),
        ("```", None),
    ],
)
def test_the_last_closed_fence_counts(text: str, fence: str | None) -> None:
    assert last_fence(text) == fence


def test_many_openings_are_read_once() -> None:
    """Tried at each of them, a pattern would take hours."""
    assert last_fence("```python\n" * 500_000) is None
