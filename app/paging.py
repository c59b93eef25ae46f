"""Lists: newest first, by keyset. `after` is the last id of the page before, so that new rows shift nothing."""

from collections.abc import Callable, Sequence
from typing import Annotated, Generic, Literal, Protocol, TypeVar

from fastapi import Depends, Query
from pydantic import BaseModel, ConfigDict, Field

DEFAULT_LIMIT = 20
MAX_LIMIT = 100


class Listed(Protocol):
    @property
    def id(self) -> str: ...


Row = TypeVar("Row")
Item = TypeVar("Item")
ListedItem = TypeVar("ListedItem", bound=Listed)


class Page(BaseModel):
    """Query parameters of every list."""

    model_config = ConfigDict(frozen=True)

    after: str | None
    limit: int

    @property
    def fetch(self) -> int:
        """How many rows to ask the database for: one more than is shown tells whether there is more."""
        return self.limit + 1


class ListReply(BaseModel, Generic[Item]):
    """One page, in OpenAI's shape."""

    model_config = ConfigDict(frozen=True)

    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool = Field(description="Whether `after=<last_id>` gives more.")
    first_id: str | None
    last_id: str | None


def _page(
    after: Annotated[
        str | None,
        Query(pattern="^[A-Za-z0-9_-]{1,64}$", description="Show what comes after this id: a page's `last_id`."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many to show.")] = DEFAULT_LIMIT,
) -> Page:
    return Page(after=after, limit=limit)


PageDep = Annotated[Page, Depends(_page)]


def list_reply(rows: Sequence[Row], page: Page, show: Callable[[Row], ListedItem]) -> "ListReply[ListedItem]":
    """The page of `rows`, which were fetched with `limit=page.fetch`."""
    data = [show(row) for row in rows[: page.limit]]
    return ListReply(
        data=data,
        has_more=len(rows) > page.limit,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
    )
