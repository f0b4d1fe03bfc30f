"""One local Ray for the tests of this folder that run a job in their own process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.connect import connected


@pytest.fixture(scope="module")
def ray_running() -> Iterator[None]:
    with connected(None):
        yield


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch with one thread: for small models more are no faster, and far slower on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
