"""Runs the steps of an experiment that aren't done yet, as many side by side as the cluster has room for.

A step begins once those before it are done and what it reserves is free. One that fails holds up those that come after
it and no other. The same command goes on from where it stands, and tries again what failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from experiments.config import Experiment, Scale
from experiments.plan import Cell, Step, cells, distinct, missing
from experiments.record import record, write
from experiments.reserving import Node, fits, share, total
from experiments.steps import Do, Here, StepFolder, perform, told
from experiments.table import printed, tables
from synuc.folder import Folder
from synuc.problem import Problem
from synuc.progress import Status

SECONDS_BETWEEN_LOOKS = 1.0


class ExperimentFailed(Problem):
    """Some steps ended without a result; the message lists them."""


@dataclass(frozen=True)
class Crew:
    """Who carries out steps: `do` one of them, at most `concurrent` at a time, on a cluster of `nodes`."""

    do: Do
    concurrent: int
    nodes: Sequence[Node]

    @property
    def cpus(self) -> float:
        """The CPUs that one step may take where its configuration doesn't say how many."""
        return total(self.nodes).cpus / self.concurrent


@contextmanager
def on_ray(experiment: Experiment) -> Iterator[Crew]:
    """The steps' own jobs, on a cluster that stays joined for the length of the block."""
    from cluster.connect import connected, nodes

    with connected(experiment.address):
        there = nodes()
        yield Crew(perform, experiment.concurrent or max(1, int(total(there).gpus)), there)


def run(
    experiment: Experiment,
    name: str,
    scale: Scale,
    path: Path,
    console: Console,
    crew: Callable[[Experiment], AbstractContextManager[Crew]] = on_ray,
) -> None:
    """Carry out, or go on with, an experiment in the run `path`, and print its tables.

    Raises:
        Problem: the settings can't be used, a benchmark isn't there, or some steps failed; the others are done all
            the same.
    """
    planned = cells(experiment)
    steps = distinct(planned)
    if absent := missing(steps):
        raise Problem(f"no benchmark at {', '.join(absent)}: put it there, or name others with --set 'bench=[PATH]'")
    folder = Folder(path)
    with folder.locked():
        kept = record(experiment, name, scale, planned)
        write(folder.path, kept)
        left = [step for step in steps if not StepFolder(folder.path, step.name).done]
        console.print(f"{len(steps) - len(left)} of {len(steps)} steps are done.", highlight=False)
        errors: dict[str, Exception] = {}
        if left:
            with crew(experiment) as ready:
                errors = _Work(left, titles(planned), folder.path, ready, console).all()
        for table in tables(kept, folder.path):
            console.print(printed(table))
        page = f"A page with the published figures beside these: synuc experiment report {path}"
        console.print(page, soft_wrap=True, highlight=False, markup=False)
        if errors:
            waiting = sum(cell.state(folder.path) != "done" for cell in kept.cells)
            listed = "\n  ".join(f"{name}, {titles(planned)[name]}: {told(error)}" for name, error in errors.items())
            raise ExperimentFailed(
                f"{len(errors)} of {len(steps)} steps failed, and {waiting} of {len(kept.cells)} cells have no result "
                f"for it; the same command tries them again:\n  {listed}"
            )


def titles(planned: Sequence[Cell]) -> dict[str, str]:
    """Which cells each step is for, in words: the first, and how many others."""
    users: dict[str, list[Cell]] = {}
    for cell in planned:
        for step in distinct([cell]):
            users.setdefault(step.name, []).append(cell)
    return {name: f"for {of[0].name}" + (f" and {len(of) - 1} more" if of[1:] else "") for name, of in users.items()}


class _Work:
    """Steps that aren't done, handed out to threads as soon as those before them are."""

    def __init__(
        self, left: Sequence[Step], titles: Mapping[str, str], run: Path, crew: Crew, console: Console
    ) -> None:
        self.total = len(left)
        self.titles = titles
        self.waiting = {step.name: step for step in left}
        self.shares = {step.name: share(step, crew.nodes, crew.cpus) for step in left}
        self.there = total(crew.nodes)
        self.running: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.held_up: set[str] = set()
        self.stopped = False
        self.crew = crew
        self.run = run
        self.console = console
        self.changed = threading.Condition()

    def all(self) -> dict[str, Exception]:
        """Carry out what can be, and give the errors of steps that failed.

        One at a time runs in this thread, so that Ctrl-C ends it in an orderly way. Several run in threads, which it
        doesn't reach: it lets them finish what they do, as their jobs need the cluster that is left afterwards.
        """
        for step in self.waiting.values():
            StepFolder(self.run, step.name).failure.unlink(missing_ok=True)
        if self.crew.concurrent == 1:
            self._some(Here(self.run, self.console, self.crew.cpus), speak=True)
            return self.errors
        here = Here(self.run, Console(quiet=True), self.crew.cpus)
        threads = [threading.Thread(target=self._some, args=(here,), daemon=True) for _ in range(self.crew.concurrent)]
        with Status(self.console, "Starting the first steps ...") as status:
            for thread in threads:
                thread.start()
            try:
                self._follow(threads, status)
            except KeyboardInterrupt:
                self._stop()
                self._follow(threads, status)
                raise
        return self.errors

    def _follow(self, threads: Sequence[threading.Thread], status: Status) -> None:
        """Say how far it is until all threads are over."""
        while any(thread.is_alive() for thread in threads):
            status.say(self._line())
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _stop(self) -> None:
        """Let no step begin any more, and none fail: what ends without a result now was broken off."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()
            running = len(self.running)
        said = f"Stopping once what runs is over ({running} steps); Ctrl-C again breaks it off, to go on another time."
        self.console.print(said, soft_wrap=True, highlight=False, markup=False)

    def _some(self, here: Here, speak: bool = False) -> None:
        """Carry out steps until none is left for this thread."""
        while step := self._next():
            folder = StepFolder(self.run, step.name)
            if speak:
                number = self.total - len(self.waiting)
                self.console.rule(f"{number}/{self.total} {step.name} {self.titles[step.name]}", align="left")
            started = time.time()
            try:
                folder.begin(step)
                self.crew.do(step, here)
                folder.end(time.time() - started)
            except Exception as error:
                if self.stopped:
                    return
                self.errors[step.name] = error
                with suppress(OSError):  # on a full disk; it is still said in the end
                    folder.fail(error)
                if speak:
                    self.console.print(f"failed: {told(error)}", highlight=False, markup=False, soft_wrap=True)
            finally:
                with self.changed:
                    self.running.remove(step.name)
                    self.changed.notify_all()

    def _next(self) -> Step | None:
        """The next step that can begin, once there is one; None when there will be none any more."""
        with self.changed:
            while True:
                self._drop_held_up()
                if self.stopped:
                    return None
                if step := next(filter(self._can_begin, self.waiting.values()), None):
                    self.running.append(step.name)
                    return self.waiting.pop(step.name)
                if not self.waiting:
                    return None
                self.changed.wait()

    def _can_begin(self, step: Step) -> bool:
        """Whether the steps before it are done, and what it reserves is free."""
        if any(before.name in self.waiting or before.name in self.running for before in step.after):
            return False
        return fits(self.shares[step.name], [self.shares[name] for name in self.running], self.there)

    def _drop_held_up(self) -> None:
        # In the order of the plan, so that what waits for a dropped step is dropped with it.
        for step in list(self.waiting.values()):
            if any(before.name in self.errors or before.name in self.held_up for before in step.after):
                self.held_up.add(step.name)
                del self.waiting[step.name]

    def _line(self) -> str:
        """How far it is, in one line."""
        with self.changed:
            over = self.total - len(self.waiting) - len(self.running)
            failed = [f"{len(self.errors)} failed"] if self.errors else []
            running = [f"{name} {self.titles[name]}" for name in self.running]
        return "; ".join([f"{over}/{self.total} steps", *failed, *running])
