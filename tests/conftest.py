"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings

from tests.standin import Running, running

# Times on a busy machine say nothing.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


@pytest.fixture
def standin() -> Iterator[Callable[..., Running]]:
    """Starts stand-in endpoints: `standin("--slots", "4").url`. They end with the test."""
    with ExitStack() as stack:
        yield lambda *options: stack.enter_context(running("--service-time", "0.01", *options))
