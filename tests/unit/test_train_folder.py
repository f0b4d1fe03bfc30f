"""What a training run leaves in its folder, what ends it at once, and what Ray may try again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from synuc.problem import Problem
from training.data import DataError
from training.folder import TrainFolder, add_lines
from training.worker import TrainingStopped, giving_up


@pytest.fixture
def folder(tmp_path: Path) -> TrainFolder:
    return TrainFolder(tmp_path)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "optimizer.micro_batch_size"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"), "micro_batch_size"),
        (OSError(errno.ENOSPC, "No space left on device"), "make room and give the same command"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "make room"),
        (RuntimeError("PytorchStreamWriter failed writing file data/0"), "make room"),
        (ValueError("Error while serializing: I/O error: No space left on device (os error 28)"), "make room"),
    ],
)
def test_memory_and_disk_end_the_run_with_a_remedy(folder: TrainFolder, error: Exception, remedy: str) -> None:
    with pytest.raises(TrainingStopped, match=remedy), giving_up(folder):
        raise error
    # A worker that Ray starts again ends at once with the same words.
    with pytest.raises(TrainingStopped, match=remedy), giving_up(folder):
        pytest.fail("it went on")


def test_a_problem_of_ours_ends_the_run_as_it_is(folder: TrainFolder) -> None:
    with pytest.raises(DataError, match="no such file"), giving_up(folder):
        raise DataError("no such file")
    assert folder.given_up.read_text("utf-8") == "no such file"


def test_anything_else_may_be_tried_again(folder: TrainFolder) -> None:
    with pytest.raises(RuntimeError, match="connection reset"), giving_up(folder):
        raise RuntimeError("connection reset by peer")
    assert not folder.given_up.exists()


def test_a_disk_too_full_for_the_word_changes_nothing_about_the_error(
    folder: TrainFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(Problem, match="the disk is full"), giving_up(folder):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_the_last_row_is_the_last_whole_line(folder: TrainFolder) -> None:
    assert folder.last_row() is None
    add_lines(folder.metrics, ({"step": n, "note": "\u2028" * 50} for n in range(2000)))
    with folder.metrics.open("a", encoding="utf-8") as file:
        file.write('{"step": 2000, "no')  # a crash cut it off
    assert folder.last_row() == folder.rows()[-1]
