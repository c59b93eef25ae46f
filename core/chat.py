"""A message of a chat. By itself: the sandbox loads it at every start, and little else of ours."""

from typing import TypedDict


class ChatMessage(TypedDict):
    role: str
    content: str
