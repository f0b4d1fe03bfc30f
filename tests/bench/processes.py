"""A command with all the processes that it starts: the CPU they use, and the memory they hold at most."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.5
"""What a process does in its last moments, shorter than this, isn't seen."""
TAIL = 2000


class CommandFailed(Exception):
    """The command ended with an error, or not in time. The message holds the end of what it printed."""


@dataclass(frozen=True)
class Peak:
    """The most memory a process held, in MiB: `pss` with its share of what it shares, `uss` what is its alone."""

    pss: float
    uss: float


@dataclass
class Watched:
    """What a command came to. `cpu` seconds, user and system, of the whole tree; `peaks` by process id."""

    seconds: float = 0.0
    cpu: float = 0.0
    peaks: dict[int, Peak] = field(default_factory=dict)
    titles: dict[int, str] = field(default_factory=dict)

    def peaks_of(self, title: str) -> list[Peak]:
        """The peaks of the processes whose command line, or Ray's title for it, holds `title`; the largest first."""
        found = [peak for pid, peak in self.peaks.items() if title in self.titles[pid]]
        return sorted(found, key=lambda peak: -peak.pss)


def watch(
    command: Sequence[str],
    log: Path,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    memory: bool = False,
) -> Watched:
    """Run a command to its end. All that it prints goes to `log`. `memory`: look at its processes' memory, too.

    Raises:
        CommandFailed: it ended with an error or not in time; its processes are ended.
    """
    # Processes whose parent ends come to us instead of to init, so that they are still seen.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    found, used = Watched(), dict[tuple[int, float], float]()
    others = {child.pid for child in psutil.Process().children(recursive=True)}
    started = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=cwd)
        try:
            while (code := process.poll()) is None and time.monotonic() - started < timeout_s:
                _look(others, found, used, memory)
                time.sleep(POLL_S)
            found.seconds = time.monotonic() - started
        finally:
            _end(others)
    found.cpu = sum(used.values())
    if code != 0:
        said = log.read_text("utf-8", "replace").strip()[-TAIL:]
        why = f"not at its end after {timeout_s:.0f} s" if code is None else f"exit status {code}"
        raise CommandFailed(f"{why}: {said}")
    return found


def _mine(others: set[int]) -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.pid not in others]


def _look(others: set[int], found: Watched, used: dict[tuple[int, float], float], memory: bool) -> None:
    for one in _mine(others):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            times = one.cpu_times()
            used[one.pid, one.create_time()] = times.user + times.system
            found.titles[one.pid] = " ".join(one.cmdline()) or found.titles.get(one.pid, "")
            if memory:
                full = one.memory_full_info()
                old = found.peaks.get(one.pid, Peak(0, 0))
                found.peaks[one.pid] = Peak(max(old.pss, full.pss / 2**20), max(old.uss, full.uss / 2**20))


def _end(others: set[int]) -> None:
    """End and wait for whatever the command has left behind; its orphans are ours."""
    while left := _mine(others):
        for child in left:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        for child in left:
            with suppress(ChildProcessError):
                os.waitpid(child.pid, 0)
