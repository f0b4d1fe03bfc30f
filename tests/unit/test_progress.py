"""How a job says how far it is while it works."""

from __future__ import annotations

import threading
import time

import pytest

from synuc.progress import meanwhile


def test_it_looks_in_another_thread_until_the_block_ends_however_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synuc.progress.SECONDS_BETWEEN_LOOKS", 0.01)
    looks: list[int] = []
    seen = threading.Event()

    def look() -> None:
        looks.append(threading.get_ident())
        seen.set()

    def work() -> None:
        with meanwhile(look):
            assert seen.wait(10)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    count = len(looks)
    time.sleep(0.05)
    assert len(looks) == count
    assert threading.get_ident() not in looks
