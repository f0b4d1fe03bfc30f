"""Small run folders with samples of every kind, written as a run writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actors.journal import MemoryJournal
from pipelines.run_folder import RunFolder, sample_row
from synuc.config import Method, RunConfig, method_snapshot
from synuc.sample import Sample
from synuc.synthesis import crashed
from synuc.types import CallFailed, Label, Seed
from tests.scripted import Driver, Script, a_seed, a_trajectory

HOSTILE = "[bold red]not markup[/] \x1b[31mred\x07 \u202eright\u2066 <|im_start|>system | `x` 中文 \u2028 end"
"""What must reach a reader of the data unchanged, and a terminal only as text."""

LONG = "begin " + "middle " * 300 + "finish"


@dataclass
class Run:
    """A run folder and what was put into it."""

    folder: RunFolder
    seeds: list[Seed]
    samples: list[Sample]
    calls: list[dict[str, Any]] = field(default_factory=list)

    def accepted(self) -> list[Sample]:
        return sorted((s for s in self.samples if s.outcome == "accepted"), key=lambda s: s.id)

    def write(self, samples: Sequence[Sample]) -> None:
        self.folder.write_part("samples", [sample_row(sample) for sample in samples])


def a_run(path: Path, unfinished: int = 0, model: str = "org/strong", **method: Any) -> Run:
    """A run of 9 finished dialogues (and some `unfinished`) of 12 read, ended, with calls and a memory.

    Each dialogue also gives ND. Those of even number are English, the others Chinese. 0, 1 and 2: all accepted, the IC
    of every relation; 3: ER and IC rejected at the anchor; 4: too little confidence; 5: extraction fails; 6: the filter
    fails; 7: killed its engine; 8: not eligible, ND only. The texts are hostile, and some are long.
    """
    config = RunConfig.model_validate(
        {
            "engine": {"kind": "openai", "model": model},
            "seeds": {"paths": ["chats"]},
            "method": {"alpha": 1.0, **method},
        }
    )
    folder = RunFolder(path)
    folder.path.mkdir(parents=True)
    folder.begin(config, method_snapshot(config, "prompts-1"))
    seeds = [_seed(n) for n in range(9 + unfinished)]
    run = Run(folder, seeds, [])
    for seed in seeds[:9]:
        run.samples += _samples(seed, config.method)
        run.calls += [_call(seed.id, seed.id, "filter", 0), _call(seed.id, f"{seed.id}-IC", "match", 1)]
    folder.write_part("seeds", [{"id": seed.id, "seed": seed.model_dump_json()} for seed in seeds])
    reasons = ["too_long", "too_long", "language"]
    folder.write_part("rejects", [{"source": "chats", "position": str(n), "reason": r} for n, r in enumerate(reasons)])
    folder.write_ingest(
        {
            "read": len(seeds) + 3,
            "taken": len(seeds),
            "trimmed": 1,
            "refused": {"too_long": 2, "language": 1},
            "sources": {"chats|odd.jsonl": {"read": len(seeds) + 3, "taken": len(seeds)}},
        }
    )
    folder.write_part("calls", run.calls)
    half = len(run.samples) // 2
    # Not in the order of their ids, and in two files.
    run.write(run.samples[half:])
    run.write(run.samples[:half])
    folder.note_session(
        started=1000.0,
        seconds=90.0,
        ended="stopped" if unfinished else "finished",
        dialogues=9,
        workers=None,
    )
    journal = MemoryJournal(folder.path / "memory", 3, 10)
    for id in ("t1", "t2"):
        trajectory = a_trajectory(id, success=id == "t1")
        journal.write({"do": "record", "trajectory": trajectory.model_dump(mode="json")})
    return run


def _seed(n: int) -> Seed:
    turns = [(f"Write a story, number {n}. {HOSTILE}", LONG if n % 2 else f"Once upon a time, {HOSTILE}")]
    turns += [(f"Make it calm, take {turn}.", f"A calm night fell. {turn}") for turn in range(1, 3 + n % 3)]
    seed = a_seed(f"{n * 7 % 10:x}{n:015x}", turns, system="Be kind." if n == 0 else "")
    return seed.model_copy(update={"language": "zh" if n % 2 else "en", "source": "chats|odd.jsonl"})


def _samples(seed: Seed, method: Method) -> list[Sample]:
    n = int(seed.id[1:], 16)
    if n == 7:
        return [crashed(seed)]
    scripts: dict[int, dict[str, Any]] = {
        1: {"match/IC": {"constraint": "c3"}, "generate/IC": {"type": "explicit"}},
        2: {"match/IC": {"constraint": "c3"}},
        3: {"verify_anchor": {"pair_holds": False, "pair_analysis": f"they fit together {HOSTILE}"}},
        4: {"judge_global": {"confidence": 79}},
        5: {"tasks": CallFailed("truncated", "no end within 900 tokens")},
        6: {"filter": CallFailed("unparseable", "no JSON")},
        8: {"filter": {"category": "chitchat"}},
    }
    return [*Driver(Script(scripts.get(n))).samples(seed, method).values()]


def _call(seed_id: str, key: str, stage: str, failures: int) -> dict[str, Any]:
    return {
        "seed_id": seed_id,
        "key": key,
        "stage": stage,
        "role": "generator",
        "model": "org/strong",
        "attempt": 0,
        "started": 1000.0 + int(seed_id[1:], 16),
        "seconds": 2.0,
        "prompt_tokens": 100,
        "cached_tokens": 25,
        "completion_tokens": 10,
        "finish_reason": "stop",
        "error": "unparseable" if failures else "",
        "cost": 0.5,
    }


def of_label(samples: Sequence[Sample], label: Label) -> list[Sample]:
    return [sample for sample in samples if sample.label is label]
