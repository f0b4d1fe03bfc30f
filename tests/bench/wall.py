"""`python -m tests.bench.wall`: wall time from the first call to the last, over what the endpoint's slots allow.

The ideal is the seconds that all calls take in their slots, over the number of slots; once with calls that all take the
same time, once with every tenth slower by ten times.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.bench.endpoint import watched
from tests.bench.ours import ROOT, synthesis
from tests.bench.processes import watch
from tests.bench.seeds import write_seeds
from tests.bench.verdicts import Row, conclude

TARGET = 1.05
SLOW = ("--slow-share", "0.1", "--slow-factor", "10")
TIMES_IDEAL = 10
"""A run that takes so many times as long as it should is ended."""


def measure(what: str, seeds: int, slots: int, service_time: float, in_flight: int, *options: str) -> Row:
    """Wall over ideal of one run of the default method."""
    with tempfile.TemporaryDirectory() as folder, watched(slots, service_time, *options) as endpoint:
        file = write_seeds(Path(folder) / "seeds.jsonl", seeds)
        command = synthesis(Path(folder) / "run", file, endpoint.url, in_flight, {"seeds.languages": "[]"})
        limit = 300 + TIMES_IDEAL * 20 * seeds * service_time / slots
        whole = watch(command, Path(folder) / "log", limit, cwd=ROOT).seconds
        window = endpoint.window()
    ideal = window.service / slots
    ratio = window.seconds / ideal
    figures = f"{ratio:.3f} ({window.calls:,} calls in {window.seconds:.1f} s, ideal {ideal:.1f}; all {whole:.1f} s)"
    return Row(what, figures, f"at most {TARGET}", ratio <= TARGET)


def main() -> int:
    """Both loads; the exit status is 1 if one misses the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--service-time", type=float, default=0.2, help="seconds")
    parser.add_argument("--in-flight", type=int, default=80, help="calls that the run keeps in flight at most")
    options = parser.parse_args()
    load = (options.seeds, options.slots, options.service_time, options.in_flight)
    rows = [
        measure("wall over ideal, all calls alike", *load),
        measure("wall over ideal, a tenth slower by 10x", *load, *SLOW),
    ]
    return conclude(f"{options.seeds} seeds, {options.slots} slots, {options.service_time * 1000:.0f} ms", rows)


if __name__ == "__main__":
    sys.exit(main())
