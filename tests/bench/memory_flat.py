"""`python -m tests.bench.memory_flat`: the memory of a run's processes at a thousand seeds and at twenty thousand.

Each process at its peak, with its share of what it shares (PSS) as Linux counts it. Ray's own processes are there to
be read: they have no target.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.bench.endpoint import watched
from tests.bench.ours import ROOT, synthesis
from tests.bench.processes import Peak, Watched, watch
from tests.bench.seeds import write_seeds
from tests.bench.verdicts import Row, conclude

TARGET = 1.10
OURS = {
    "driver": "synuc.cli synthesize",
    "largest worker": "ray::MapWorker(MapBatches(SynthesisWorker",
    "memory actor": "ray::Memory",
}
RAYS = {"Ray's gcs_server": "gcs/gcs_server", "Ray's raylet": "raylet/raylet"}


def run(seeds: int, slots: int, service_time: float, in_flight: int, limit: float) -> Watched:
    """The processes of a run of the default method."""
    with tempfile.TemporaryDirectory() as folder, watched(slots, service_time) as endpoint:
        file = write_seeds(Path(folder) / "seeds.jsonl", seeds)
        command = synthesis(Path(folder) / "run", file, endpoint.url, in_flight, {"seeds.languages": "[]"})
        return watch(command, Path(folder) / "log", limit, cwd=ROOT, memory=True)


def row(what: str, few: Peak, many: Peak, judged: bool) -> Row:
    """A process at its peak in the small run and in the large one."""
    ratio = many.pss / few.pss
    figures = f"{few.pss:.0f} and {many.pss:.0f} MiB, ratio {ratio:.2f} (alone: {few.uss:.0f} and {many.uss:.0f})"
    return Row(what, figures, f"at most {TARGET:.2f}" if judged else "", ratio <= TARGET if judged else None)


def main() -> int:
    """Both sizes; the exit status is 1 if a process of ours grows by more than the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", type=int, default=1000, help="seeds")
    parser.add_argument("--many", type=int, default=20_000, help="seeds")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--service-time", type=float, default=0.005, help="seconds")
    parser.add_argument("--in-flight", type=int, default=80)
    parser.add_argument("--limit", type=float, default=5400, help="seconds that a run may take")
    options = parser.parse_args()
    few, many = (
        run(seeds, options.slots, options.service_time, options.in_flight, options.limit)
        for seeds in (options.few, options.many)
    )
    rows = []
    for named, judged in ((OURS, True), (RAYS, False)):
        rows += [row(what, few.peaks_of(title)[0], many.peaks_of(title)[0], judged) for what, title in named.items()]
    for seeds, found in ((options.few, few), (options.many, many)):
        workers = len(found.peaks_of(OURS["largest worker"]))
        everything = sum(peak.pss for peak in found.peaks.values())
        figures = f"{everything:.0f} MiB in {len(found.peaks)} processes, {workers} workers; {found.seconds:.0f} s"
        rows.append(Row(f"sum of all peaks, {seeds} seeds", figures))
    return conclude(f"Peak memory at {options.few} and {options.many} seeds", rows)


if __name__ == "__main__":
    sys.exit(main())
