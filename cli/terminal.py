"""How the command line speaks: plain lines on a pipe, a live line on a terminal."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.live import Live
from rich.text import Text

from core.errors import ServiceError

PLAIN_EVERY_S = 5.0
# No markup, no wrapping: a pasted curl line must be the line that was meant.
console = Console(highlight=False, markup=False, soft_wrap=True)
errors = Console(highlight=False, markup=False, soft_wrap=True, stderr=True)


def say(text: str = "", style: str | None = None) -> None:
    with suppress(OSError):  # the terminal may be gone; what is running is not
        console.print(text, style=style)


def say_table(*rows: Sequence[str]) -> None:
    """Aligned columns, the first row a heading. Never cut: an id is there to be copied, whatever the width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def complain(error: ServiceError) -> None:
    errors.print(f"error: {error.message}", style="red")
    if error.fix:
        errors.print(f"fix: {error.fix}")


@contextmanager
def changing_line() -> Iterator[Callable[[str], None]]:
    """A function that shows the newest state: one line that changes, or on a pipe a line now and then."""
    if not console.is_terminal:
        yield _now_and_then()
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda text: live.update(Text(text, style="bold", overflow="ellipsis", no_wrap=True), refresh=True)


def _now_and_then() -> Callable[[str], None]:
    shown, shown_at = "", -PLAIN_EVERY_S

    def show(text: str) -> None:
        nonlocal shown, shown_at
        now = time.monotonic()
        if text != shown and now - shown_at >= PLAIN_EVERY_S:
            say(text)
            shown, shown_at = text, now

    return show
