"""`python -m tests.bench.peers`: eight dependent calls on the same dialogues, by us and by the peers.

All against the same stand-in endpoint, one after the other, in one run. Measured are the time from the first call to
the last (by the endpoint), the time of the whole process, and the CPU seconds per call of all its processes, Ray's
start included. We are to be ahead of every peer: of the calls' time at the small size, of the whole time at the large
one, of the CPU at both. A peer that can't be installed or run stands in the table with its error.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from actors.engine import reply_schema
from pipelines.run_folder import RunFolder
from synuc import prompts
from synuc.config import Method
from synuc.types import Label
from tests.bench.endpoint import Endpoint, watched
from tests.bench.ours import EIGHT_CALLS, ROOT, synthesis
from tests.bench.peers.environments import NoEnvironment, environment, interpreter
from tests.bench.peers.job import CALLS, Job
from tests.bench.processes import CommandFailed, watch
from tests.bench.seeds import read, write_seeds
from tests.bench.verdicts import CONSOLE, Row, conclude
from tests.scripted import Driver

OURS = "synuc"
PEERS = {"distilabel": "distilabel_side", "curator": "curator_side", "data-designer": "data_designer_side"}
TIMES_IDEAL = 20
ERROR_LINES = 3


@dataclass(frozen=True)
class Figures:
    """Of one side at one size: seconds from first call to last, of the whole process, and CPU seconds per call."""

    calls_s: float
    whole_s: float
    cpu_per_call: float


@dataclass(frozen=True)
class Size:
    """One size of the comparison: its seeds in OpenAI's shape, and where its runs may write."""

    dialogues: int
    seeds: Path
    folder: Path
    slots: int
    service_time: float
    in_flight: int

    @property
    def limit(self) -> float:
        """Seconds after which a side is given up."""
        return 300 + TIMES_IDEAL * self.dialogues * len(CALLS) * self.service_time / self.slots


class WrongCalls(Exception):
    """A side did other work than the others: its figures would mean nothing."""


def job(size: Size, url: str, home: Path) -> Path:
    """The job for a peer as a file: our own texts, with answers in the place of what our prompts make of them."""
    seeds = read(size.seeds)
    driver = Driver()
    driver.samples(seeds[0], Method(labels=(Label.IC,), task_filter=False))
    texts = {request.stage: request.messages[1]["content"] for request in driver.requests}
    dialogues = home / "dialogues.jsonl"
    with dialogues.open("w", encoding="utf-8") as file:
        for seed in seeds:
            text = prompts.render("dialogue", dialogue=seed.dialogue)
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    made = Job(
        url=url,
        in_flight=size.in_flight,
        system=driver.requests[0].messages[0]["content"],
        jobs={call: texts[call][texts[call].rindex("# Job") :] for call in CALLS},
        schemas={call: reply_schema(model) for call, model in CALLS.items()},
        dialogues=str(dialogues),
        folder=str(home / "work"),
    )
    made.write(home / "job.json")
    return home / "job.json"


def ours(size: Size, endpoint: Endpoint, home: Path) -> tuple[float, float, int]:
    """Our pipeline: seconds, CPU seconds, dialogues with a sample."""
    settings = {**EIGHT_CALLS, "seeds.languages": "[]"}
    command = synthesis(home / "run", size.seeds, endpoint.url, size.in_flight, settings)
    found = watch(command, home / "log", size.limit, cwd=ROOT)
    return found.seconds, found.cpu, len(RunFolder(home / "run").finished())


def peer(name: str) -> Callable[[Size, Endpoint, Path], tuple[float, float, int]]:
    """A peer, likewise."""

    def run(size: Size, endpoint: Endpoint, home: Path) -> tuple[float, float, int]:
        command = [str(interpreter(name)), "-m", f"tests.bench.peers.{PEERS[name]}", str(job(size, endpoint.url, home))]
        found = watch(command, home / "log", size.limit, environment(home), cwd=home)
        last = (home / "log").read_text("utf-8", "replace").strip().splitlines()[-1]
        return found.seconds, found.cpu, int(json.loads(last)["finished"])

    return run


def measure(name: str, size: Size) -> Figures:
    """One side at one size.

    Raises:
        NoEnvironment, CommandFailed: it can't be installed or run.
        WrongCalls: it made more or fewer calls than eight a dialogue, or lost dialogues.
    """
    home = size.folder / f"{name}-{size.dialogues}"
    home.mkdir()
    run = ours if name == OURS else peer(name)
    with watched(size.slots, size.service_time) as endpoint:
        whole, cpu, finished = run(size, endpoint, home)
        window = endpoint.window()
    expected = size.dialogues * len(CALLS)
    if window.calls != expected or finished != size.dialogues:
        raise WrongCalls(
            f"{window.calls} calls instead of {expected}, {finished} of {size.dialogues} dialogues finished"
        )
    return Figures(window.seconds, whole, cpu / window.calls)


def table(sizes: Sequence[Size], found: dict[str, list[Figures] | str]) -> Table:
    """All figures, or a side's error in their place."""
    made = Table(title=f"{len(CALLS)} dependent calls a dialogue, {sizes[0].slots} slots, {sizes[0].service_time:g} s")
    made.add_column("")
    for size in sizes:
        ideal = size.dialogues * len(CALLS) * size.service_time / size.slots
        made.add_column(f"{size.dialogues}: calls (ideal {ideal:.1f} s)", justify="right")
        made.add_column("whole", justify="right")
        made.add_column("CPU a call", justify="right")
    for name, figures in found.items():
        if isinstance(figures, str):
            made.add_row(name, figures)
            continue
        cells = [
            (f"{one.calls_s:.1f} s", f"{one.whole_s:.1f} s", f"{one.cpu_per_call * 1000:.1f} ms") for one in figures
        ]
        made.add_row(name, *(cell for row in cells for cell in row))
    return made


def verdicts(sizes: Sequence[Size], found: dict[str, list[Figures] | str]) -> list[Row]:
    """Whether we are ahead, peer by peer."""
    mine = found[OURS]
    if isinstance(mine, str):
        return [Row(OURS, mine, "runs", False)]
    rows = []
    for name, theirs in found.items():
        if name == OURS:
            continue
        if isinstance(theirs, str):
            rows.append(Row(f"ahead of {name}", "not measured", "runs", False))
            continue
        judged = [("calls", 0, mine[0].calls_s, theirs[0].calls_s), ("whole", -1, mine[-1].whole_s, theirs[-1].whole_s)]
        judged += [
            ("CPU a call", n, a.cpu_per_call, b.cpu_per_call) for n, (a, b) in enumerate(zip(mine, theirs, strict=True))
        ]
        for what, n, ours, other in judged:
            where = f"ahead of {name}: {what}, {sizes[n].dialogues} dialogues"
            rows.append(Row(where, f"{other / ours:.2f} times ours", "above 1", ours < other))
    return rows


def main() -> int:
    """All sides at both sizes; the exit status is 1 unless we are ahead everywhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", type=int, default=400, help="dialogues")
    parser.add_argument("--many", type=int, default=2000, help="dialogues")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--service-time", type=float, default=0.2, help="seconds")
    parser.add_argument("--in-flight", type=int, default=80, help="calls at a time that each side may have")
    parser.add_argument("--only", action="append", choices=(OURS, *PEERS))
    options = parser.parse_args()
    found: dict[str, list[Figures] | str] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        sizes = []
        for n in (options.few, options.many):
            seeds = write_seeds(folder / f"seeds-{n}.jsonl", n)
            sizes.append(Size(n, seeds, folder, options.slots, options.service_time, options.in_flight))
        for name in options.only or (OURS, *PEERS):
            try:
                found[name] = [measure(name, size) for size in sizes]
            except (NoEnvironment, CommandFailed, WrongCalls) as error:
                found[name] = "\n".join(str(error).splitlines()[-ERROR_LINES:])
                CONSOLE.print(f"{name}: {error}", soft_wrap=True, markup=False)
        CONSOLE.print(table(sizes, found))
    return conclude("Ahead of the peers", verdicts(sizes, found)) if OURS in found else 0


if __name__ == "__main__":
    sys.exit(main())
