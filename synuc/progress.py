"""How a job says how far it is: redrawn on a terminal, one plain line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live

SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_LOOKS = 0.5


class Status:
    """What a job shows of its state while it runs. `at_first` is shown until there is something to say."""

    def __init__(self, console: Console, at_first: str) -> None:
        self.console = console
        self._at_first = at_first
        self._printed = time.monotonic()
        self._said = ""
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
            self._live.update(self._at_first, refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, line: str, panel: RenderableType | None = None) -> None:
        """Show the state: `panel`, else `line`, on a terminal; elsewhere the line, if it is new and time has passed."""
        if self._live:
            self._live.update(line if panel is None else panel, refresh=True)
        elif line != self._said and time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES:
            self._said, self._printed = line, time.monotonic()
            self.console.print(line, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def meanwhile(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` now and then, in another thread, for the length of the block.

    The block itself stays in the thread it is in, so that Ctrl-C reaches it. `look` must not use Ray: a thread that
    does while the block's end shuts Ray down ends the whole process from within Ray's C++ code, without a word.
    """
    over = threading.Event()

    def looking() -> None:
        while not over.wait(SECONDS_BETWEEN_LOOKS):
            look()

    thread = threading.Thread(target=looking, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def duration(seconds: float) -> str:
    """A time in words, e.g. `2h05m` or `3m20s`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"
