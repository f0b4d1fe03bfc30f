"""One local Ray for the tests of this folder that run a job in their own process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.connect import connected


@pytest.fixture(scope="module")
def ray_running() -> Iterator[None]:
    with connected(None):
        yield
