"""`make bench-synthesis`: how close synthesis comes to its engine's limit.

(a) Against the stand-in endpoint (fixed service time, fixed slots): wall time from the first call to the last over the
    ideal `calls * service_time / slots`. Target: at most 1.15.
(b) With the embedded model in vLLM on real dialogues of 1,000 tokens and more: the share of prompt tokens that came
    from the prefix cache. Target: at least 70%.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.compute as pc
from rich.console import Console

from pipelines.run_folder import RunFolder
from pipelines.synthesize import synthesize
from synuc.config import RunConfig
from tests.standin import running

CONSOLE = Console()


def against_standin(seeds: int, slots: int, service_time: float, in_flight: int) -> float:
    """Wall over ideal of a run on the stand-in endpoint."""
    options = ("--slots", str(slots), "--service-time", str(service_time))
    with running(*options) as endpoint, tempfile.TemporaryDirectory() as folder:
        config = RunConfig.model_validate(
            {
                "seeds": {"paths": ["sharegpt-sample"], "limit": seeds, "max_chars": 6000},
                "engine": {
                    "kind": "openai",
                    "model": "standin",
                    "base_url": endpoint.url,
                    "max_in_flight": in_flight,
                },
            }
        )
        started = time.monotonic()
        synthesize(config, Path(folder) / "run", CONSOLE)
        whole = time.monotonic() - started
        calls = RunFolder(Path(folder) / "run").read("calls")
    wall = pc.max(pc.add(calls["started"], calls["seconds"])).as_py() - pc.min(calls["started"]).as_py()
    ideal = len(calls) * service_time / slots
    CONSOLE.print(
        f"(a) {seeds} seeds, {len(calls)} calls, {slots} slots, {service_time * 1000:.0f} ms: "
        f"first call to last {wall:.1f} s, ideal {ideal:.1f} s, ratio {wall / ideal:.3f} (target 1.15); "
        f"start and end included {whole:.1f} s",
        soft_wrap=True,
    )
    return float(wall / ideal)


def prefix_cache(seeds: int) -> float:
    """Share of cached prompt tokens of a run with the embedded model."""
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig.model_validate(
            {
                "seeds": {"paths": ["sharegpt-sample"], "limit": seeds, "min_chars": 4500, "max_chars": 8000},
                "engine": {"kind": "vllm", "model": "embedded", "max_in_flight": 16, "enforce_eager": True},
                # A 135M model finds few dialogues eligible; all stages shall run.
                "method": {"task_filter": False},
            }
        )
        started = time.monotonic()
        synthesize(config, Path(folder) / "run", CONSOLE)
        calls = RunFolder(Path(folder) / "run").read("calls")
    prompt, cached = pc.sum(calls["prompt_tokens"]).as_py(), pc.sum(calls["cached_tokens"]).as_py()
    CONSOLE.print(
        f"(b) {seeds} dialogues, {len(calls)} calls, {prompt:,} prompt tokens (mean {prompt / len(calls):,.0f}), "
        f"{cached / prompt:.1%} from the prefix cache (target 70%), {time.monotonic() - started:.0f} s",
        soft_wrap=True,
    )
    return float(cached / prompt)


def main() -> None:
    """Run both, or one by --only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["standin", "cache"])
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--service-time", type=float, default=0.2)
    parser.add_argument("--in-flight", type=int, default=80)
    parser.add_argument("--cache-seeds", type=int, default=8)
    options = parser.parse_args()
    good = True
    if options.only != "cache":
        good &= against_standin(options.seeds, options.slots, options.service_time, options.in_flight) <= 1.15
    if options.only != "standin":
        good &= prefix_cache(options.cache_seeds) >= 0.7
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
