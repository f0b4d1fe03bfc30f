"""What a run has used: calls, tokens, money and time; and what its memory holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.run_folder import RunFolder


def usage(folder: RunFolder, finished: pa.Array) -> dict[str, Any]:
    """Calls, tokens and money, altogether, per stage and per model, and how much of it was for nothing."""
    calls = folder.read("calls")
    failed = pc.cast(pc.not_equal(calls["error"], ""), pa.int64())
    calls = calls.append_column("failed", failed)
    distinct = calls.group_by(["seed_id", "key", "stage", "attempt"]).aggregate([]).num_rows
    of_open = pc.sum(pc.invert(pc.is_in(calls["seed_id"], value_set=finished))).as_py() or 0
    everything = _sums(calls, [])
    return {
        **(everything[0] if everything else _sum_row({})),
        "repeated_calls": len(calls) - distinct + (pc.sum(calls["again"]).as_py() or 0),
        "calls_of_unfinished": of_open,
        "by_stage": _sums(calls, ["stage"]),
        "by_model": _sums(calls, ["model"]),
    }


SUMMED = ("failed", "prompt_tokens", "cached_tokens", "completion_tokens", "seconds", "cost")


def _sums(calls: pa.Table, by: list[str]) -> list[dict[str, Any]]:
    """Sums over the calls, most calls first."""
    rows = calls.group_by(by).aggregate([([], "count_all"), *((name, "sum") for name in SUMMED)]).to_pylist()
    rows.sort(key=lambda row: (-row["count_all"], *(row[name] for name in by)))
    return [{**{name: row[name] for name in by}, **_sum_row(row)} for row in rows if row["count_all"]]


def _sum_row(row: Mapping[str, Any]) -> dict[str, Any]:
    n = row.get("count_all", 0)
    total = {name: row.get(f"{name}_sum") or 0 for name in SUMMED}
    return {
        "calls": n,
        "failed_attempts": total["failed"],
        "prompt_tokens": total["prompt_tokens"],
        "cached_tokens": total["cached_tokens"],
        "completion_tokens": total["completion_tokens"],
        "cached_share": total["cached_tokens"] / total["prompt_tokens"] if total["prompt_tokens"] else 0.0,
        "seconds_per_call": total["seconds"] / n if n else 0.0,
        "cost": total["cost"] or None,
    }


def time_spent(folder: RunFolder) -> dict[str, Any]:
    sessions = folder.sessions()
    seconds = sum(session["seconds"] for session in sessions)
    dialogues = sum(session["dialogues"] for session in sessions)
    calls = folder.read("calls", ["started", "seconds"])
    first = last = None
    if len(calls):
        first = pc.min(calls["started"]).as_py()
        last = pc.max(pc.add(calls["started"], calls["seconds"])).as_py()
    return {
        "sessions": len(sessions),
        "endings": dict(Counter(session["ended"] for session in sessions)),
        "seconds": seconds,
        "dialogues_per_minute": 60 * dialogues / seconds if seconds else None,
        "first_call": first,
        "last_call": last,
    }


def memory_use(folder: RunFolder) -> dict[str, dict[str, int]]:
    """Per schema that was used: updates so far, R+ and R-, B+ and B-; empty if the run keeps no memory."""
    if not (folder.path / "memory" / "snapshot.json").exists():
        return {}
    from actors.journal import load_memory

    return {
        speaking.value: {
            "version": shelf.version,
            "successes": len(shelf.successes),
            "failures": len(shelf.failures),
            "buffered_successes": sum(trajectory.success for trajectory in shelf.buffer),
            "buffered_failures": sum(not trajectory.success for trajectory in shelf.buffer),
            "recorded": len(shelf.seen),
        }
        for speaking, shelf in load_memory(folder.path / "memory").shelves.items()
        if shelf.seen
    }
