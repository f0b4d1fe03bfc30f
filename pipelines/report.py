"""The figures of a run: counts that must add up, where samples end, what was accepted, usage, time, memory.

Tables are counted by pyarrow; only the accepted samples are read one by one, for their tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.run_folder import RunFolder
from synuc.folder import RunError
from synuc.problem import Problem
from synuc.progress import duration
from synuc.sample import Outcome, Sample
from synuc.speaking import Speaking
from synuc.types import Label, Relation

ESTIMATE = "characters/4 (estimate)"
SAMPLES_PER_BATCH = 64
NO_LABEL = "-"
"""Stands for the label of samples whose dialogue was not routed."""

Count = Callable[[Sequence[str]], list[int]]


class TokenizerMissing(Problem):
    """The tokenizer asked for can't be loaded; the message says what to do."""


def figures(folder: RunFolder, tokenizer: str = "") -> dict[str, Any]:
    """All figures, as plain data for JSON. `tokenizer`: a folder or a cached hub name; none: that of the run's model.

    Raises:
        RunError: the run has not read its seeds yet.
        TokenizerMissing: there is no such tokenizer on this machine.
    """
    ingest = folder.ingest()
    if ingest is None:
        raise RunError(f"{folder.path} has not read its seeds to the end; go on with: synuc synthesize --run ...")
    samples = folder.read(
        "samples",
        ["id", "seed_id", "label", "outcome", "stage", "kind", "language", "speaking", "relation"],
    )
    samples = samples.set_column(2, "label", pc.fill_null(samples["label"], NO_LABEL))
    finished = pc.unique(samples["seed_id"])
    dialogues, checks = _dialogues(folder, ingest, finished)
    outcomes = _tally(samples, "outcome")
    totals = {outcome.value: outcomes.get(outcome.value, 0) for outcome in Outcome}
    checks += _sample_checks(folder, samples, totals)
    accepted = samples.filter(pc.equal(samples["outcome"], Outcome.ACCEPTED.value))
    return {
        "run": folder.path.name,
        "fingerprint": folder.method["fingerprint"],
        "adds_up": all(check["ok"] for check in checks),
        "checks": checks,
        "dialogues": dialogues,
        "samples": {"total": len(samples), **totals},
        "labels": _by_outcome(samples, "label", [*Label, NO_LABEL]),
        "endings": _endings(samples),
        "languages": _languages(accepted),
        "speaking": _by_outcome(samples, "speaking", Speaking),
        "relations": _by_outcome(samples, "relation", Relation),
        "accepted": _accepted(folder, tokenizer),
        "usage": _usage(folder, finished),
        "time": _time(folder),
        "memory": _memory(folder),
    }


def _check(what: str, ok: bool, detail: str) -> dict[str, Any]:
    return {"what": what, "ok": ok, "detail": detail}


def _dialogues(
    folder: RunFolder, ingest: Mapping[str, Any], finished: pa.Array
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Where the dialogues that were read are now; and whether the files say the same as the statistics."""
    seeds = folder.read("seeds", ["id"])["id"]
    read, taken, refused = ingest["read"], ingest["taken"], ingest["refused"]
    on_file = _tally(folder.read("rejects", ["reason"]), "reason")
    unfinished = pc.sum(pc.invert(pc.is_in(seeds, value_set=finished))).as_py() or 0
    unknown = pc.sum(pc.invert(pc.is_in(finished, value_set=seeds))).as_py() or 0
    n = len(finished)
    over = any(session["ended"] == "finished" for session in folder.sessions())
    total = sum(refused.values())
    checks = [
        _check("dialogues read = refused + taken", read == total + taken, f"{read} = {total} + {taken}"),
        _check("dialogues taken = finished + unfinished", taken == n + unfinished, f"{taken} = {n} + {unfinished}"),
        _check("every refused dialogue is on file", refused == on_file, f"{sum(on_file.values())} of {total}"),
        _check(
            "every taken dialogue is on file, once",
            len(seeds) == taken == pc.count_distinct(seeds).as_py(),
            f"{len(seeds)} of {taken}",
        ),
        _check("finished dialogues are among those taken", not unknown, f"{unknown} are not"),
        _check("a run that ended finished left none", not (over and unfinished), f"{unfinished} unfinished"),
    ]
    facts = {
        "read": read,
        "refused": refused,
        "taken": taken,
        "trimmed": ingest["trimmed"],
        "finished": n,
        "unfinished": unfinished,
    }
    return facts, checks


def _sample_checks(folder: RunFolder, samples: pa.Table, totals: Mapping[str, int]) -> list[dict[str, Any]]:
    repeated = len(samples) - pc.count_distinct(samples["id"]).as_py()
    checks = [
        _check(
            "samples = accepted + rejected + failed",
            len(samples) == sum(totals.values()),
            f"{len(samples)} = {' + '.join(map(str, totals.values()))}",
        ),
        _check("no sample is there twice", not repeated, f"{repeated} are"),
    ]
    if {"ER", "IC"} <= {*folder.method["method"]["labels"]}:
        of = {
            label: pc.unique(samples.filter(pc.equal(samples["label"], label))["seed_id"])
            for label in (Label.ER.value, Label.IC.value)
        }
        alone = sum(
            pc.sum(pc.invert(pc.is_in(of[one], value_set=of[other]))).as_py() or 0
            for one, other in (("ER", "IC"), ("IC", "ER"))
        )
        checks.append(_check("a dialogue has both ER and IC or neither", not alone, f"{alone} have one"))
    return checks


def _counts(table: pa.Table, *columns: str) -> dict[tuple[Any, ...], int]:
    """How many rows have each tuple of values, most first."""
    groups = table.select(list(columns)).group_by(list(columns)).aggregate([([], "count_all")]).to_pylist()
    groups.sort(key=lambda row: (-row["count_all"], *(str(row[column]) for column in columns)))
    return {tuple(row[column] for column in columns): row["count_all"] for row in groups}


def _tally(table: pa.Table, column: str) -> dict[str, int]:
    """How many rows have each value of one column, most first."""
    return {value: n for (value,), n in _counts(table, column).items()}


def _by_outcome(samples: pa.Table, column: str, values: Iterable[str]) -> dict[str, dict[str, int]]:
    """Outcomes per value of a column, in the order of `values`, of those that occur."""
    counts = _counts(samples, column, "outcome")
    rows = {
        str(value): {outcome.value: counts.get((value, outcome.value), 0) for outcome in Outcome} for value in values
    }
    return {value: {"total": sum(row.values()), **row} for value, row in rows.items() if any(row.values())}


def _endings(samples: pa.Table) -> list[dict[str, Any]]:
    """Where samples were rejected or failed, with the share in all samples."""
    counts = _counts(samples, "outcome", "stage", "kind")
    return [
        {"outcome": outcome, "stage": stage, "kind": kind, "samples": n, "share": n / len(samples)}
        for (outcome, stage, kind), n in counts.items()
        if outcome != Outcome.ACCEPTED.value
    ]


def _languages(accepted: pa.Table) -> dict[str, dict[str, int]]:
    counts = _counts(accepted, "language", "label")
    return {
        language: {label.value: counts.get((language, label.value), 0) for label in Label}
        for language in _tally(accepted, "language")
    }


def _accepted(folder: RunFolder, tokenizer: str) -> dict[str, Any]:
    """The averages of the paper's Table 3: messages and turns of the history, tokens of history and follow-up."""
    name, count = _tokenizer(folder, tokenizer)
    names = ("samples", "turns", "tokens", "max_turns", "max_tokens")
    rows: dict[str, Counter[str]] = {key: Counter(dict.fromkeys(names, 0)) for key in (*Label, "all")}
    samples = folder.samples(Outcome.ACCEPTED.value)
    while batch := list(islice(samples, SAMPLES_PER_BATCH)):
        texts = [_texts(sample) for sample in batch]
        tokens = iter(count([text for several in texts for text in several]))
        for sample, several in zip(batch, texts, strict=True):
            turns, size = len(sample.dialogue.turns), sum(islice(tokens, len(several)))
            for row in (rows[str(sample.label)], rows["all"]):
                row.update(samples=1, turns=turns, tokens=size)
                row["max_turns"] = max(row["max_turns"], turns)
                row["max_tokens"] = max(row["max_tokens"], size)
    return {
        "tokenizer": name,
        "labels": {
            str(key): {
                "samples": row["samples"],
                "messages": 2 * row["turns"] / row["samples"],
                "turns": row["turns"] / row["samples"],
                "max_turns": row["max_turns"],
                "tokens": row["tokens"] / row["samples"],
                "max_tokens": row["max_tokens"],
            }
            for key, row in rows.items()
            if row["samples"]
        },
    }


def _texts(sample: Sample) -> list[str]:
    """What a detector reads of a sample, without its prompt."""
    dialogue = sample.dialogue
    turns = [text for turn in dialogue.turns for text in (turn.user, turn.assistant)]
    return [text for text in (dialogue.system, *turns, sample.follow_up) if text]


def _tokenizer(folder: RunFolder, asked_for: str) -> tuple[str, Count]:
    """The name of the tokenizer, and how it counts the tokens of texts."""
    model = asked_for or folder.method["engines"]["generator"]["model"]
    if asked_for or Path(model).is_dir():
        return model, _load_tokenizer(model)
    from actors.embedded import EmbeddedModelMissing, embedded_model

    try:
        path = embedded_model()
    except EmbeddedModelMissing:
        return ESTIMATE, lambda texts: [-(-len(text) // 4) for text in texts]
    return "SmolLM2-135M-Instruct (embedded)", _load_tokenizer(str(path))


def _load_tokenizer(path: str) -> Count:
    file = Path(path) / "tokenizer.json"
    if file.is_file():
        from tokenizers import Tokenizer

        fast = Tokenizer.from_file(str(file))
        fast.no_truncation()
        fast.no_padding()
        return lambda texts: [len(found.ids) for found in fast.encode_batch(list(texts), add_special_tokens=False)]
    # Takes many seconds to import.
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TokenizerMissing(
            f"{path} has no tokenizer on this machine ({reason}); "
            "give --tokenizer a folder, or a hub name that was downloaded before"
        ) from None
    # Longer than the model's window is no fault here.
    tokenizer.model_max_length = 10**12
    return lambda texts: [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]


def _usage(folder: RunFolder, finished: pa.Array) -> dict[str, Any]:
    """Calls, tokens and money, altogether, per stage and per model, and how much of it was for nothing."""
    calls = folder.read("calls")
    failed = pc.cast(pc.not_equal(calls["error"], ""), pa.int64())
    calls = calls.append_column("failed", failed)
    distinct = calls.group_by(["seed_id", "key", "stage", "attempt"]).aggregate([]).num_rows
    of_open = pc.sum(pc.invert(pc.is_in(calls["seed_id"], value_set=finished))).as_py() or 0
    everything = _sums(calls, [])
    return {
        **(everything[0] if everything else _sum_row({})),
        "repeated_calls": len(calls) - distinct,
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


def _time(folder: RunFolder) -> dict[str, Any]:
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


def _memory(folder: RunFolder) -> dict[str, dict[str, int]]:
    """Per schema that was used: updates so far, R+ and R-, B+ and B-; empty if the run keeps no memory."""
    if not (folder.path / "memory" / "snapshot.json").exists():
        return {}
    from actors.memory import load_memory

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


def print_report(data: Mapping[str, Any], console: Console) -> None:
    """The figures as tables for a person; `data` is what `figures` gives."""
    console.print(Text(f"Run {data['run']}, method {data['fingerprint']}", "bold"))
    _print_dialogues(data, console)
    _print_samples(data, console)
    _print_accepted(data["accepted"], console)
    _print_languages(data["languages"], console)
    _print_usage(data["usage"], console)
    _print_time(data["time"], console)
    if data["memory"]:
        table = _table("schema", "updates", "R+", "R-", "B+", "B-", "recorded")
        for speaking, row in data["memory"].items():
            table.add_row(speaking, *map(_n, row.values()))
        _section(console, "Memory", table)


def _print_dialogues(data: Mapping[str, Any], console: Console) -> None:
    dialogues = data["dialogues"]
    table = _table("", "")
    table.show_header = False
    table.add_row("read", _n(dialogues["read"]))
    for reason, n in dialogues["refused"].items():
        table.add_row(f"  refused: {reason}", _n(n))
    table.add_row("  taken", _n(dialogues["taken"]))
    table.add_row("    finished", _n(dialogues["finished"]))
    table.add_row("    unfinished", _n(dialogues["unfinished"]))
    _section(console, "Dialogues", table)
    if dialogues["trimmed"]:
        console.print(f"{_n(dialogues['trimmed'])} of those taken had an unanswered last message, which was cut off.")
    if data["adds_up"]:
        console.print(f"All {len(data['checks'])} checks pass: the counts add up.", style="green")
        return
    console.print("The counts don't add up:", style="bold red")
    for check in data["checks"]:
        if not check["ok"]:
            console.print(Text(f"  not so: {check['what']} ({check['detail']})", "red"))


def _print_samples(data: Mapping[str, Any], console: Console) -> None:
    for title, first, key in (
        ("Samples", "label", "labels"),
        ("SPEAKING schemas", "schema", "speaking"),
        ("Relations", "relation", "relations"),
    ):
        if not data[key]:
            continue
        table = _table(first, "samples", *(outcome.value for outcome in Outcome), "accepted %")
        for name, row in data[key].items():
            table.add_row(name, *map(_n, row.values()), _percent(row["accepted"] / row["total"]))
        if key == "labels":
            totals = data["samples"]
            share = totals["accepted"] / totals["total"]
            table.add_row("all", *map(_n, totals.values()), _percent(share), style="bold")
        _section(console, title, table)
        if key == "labels" and data["endings"]:
            _print_endings(data["endings"], console)


def _print_endings(endings: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = _table("ended", "samples", "of all")
    for row in endings:
        where = f"{row['outcome']} at {row['stage'] or 'the start'}" + (f": {row['kind']}" if row["kind"] else "")
        table.add_row(Text(where), _n(row["samples"]), _percent(row["share"]))
    _section(console, "Rejected and failed", table)


def _print_accepted(accepted: Mapping[str, Any], console: Console) -> None:
    if not accepted["labels"]:
        return
    table = _table("label", "samples", "messages", "turns", "max", "tokens", "max")
    for label, row in accepted["labels"].items():
        table.add_row(
            label,
            _n(row["samples"]),
            f"{row['messages']:.2f}",
            f"{row['turns']:.2f}",
            _n(row["max_turns"]),
            f"{row['tokens']:,.1f}",
            _n(row["max_tokens"]),
            style="bold" if label == "all" else None,
        )
    _section(console, "Accepted samples, averages", table)
    console.print(Text(f"Messages and turns of the history; tokens with the follow-up, by {accepted['tokenizer']}."))


def _print_languages(languages: Mapping[str, Mapping[str, int]], console: Console) -> None:
    if not languages:
        return
    table = _table("language", *Label, "all")
    for language, row in languages.items():
        table.add_row(language, *map(_n, row.values()), _n(sum(row.values())))
    _section(console, "Accepted samples per language", table)


def _print_usage(usage: Mapping[str, Any], console: Console) -> None:
    if not usage["calls"]:
        return
    priced = usage["cost"] is not None
    for title, first, key in (("Calls per stage", "stage", "by_stage"), ("Calls per model", "model", "by_model")):
        table = _table(first, "calls", "failed", "prompt", "cached", "answer", "s/call", *(["cost"] if priced else []))
        # A model's name may be long.
        table.columns[0].overflow = "fold"
        for row in usage[key]:
            table.add_row(Text(row[first]), *_usage_cells(row, priced))
        if key == "by_stage":
            table.add_row("all", *_usage_cells(usage, priced), style="bold")
        _section(console, title, table)
    console.print("Prompt and answer in tokens; cached: share of the prompt tokens.")
    wasted = (
        (usage["repeated_calls"], "calls were made again, their dialogues having been interrupted"),
        (usage["calls_of_unfinished"], "calls belong to dialogues that aren't finished"),
    )
    for n, what in wasted:
        if n:
            console.print(f"{_n(n)} {what}.")


def _usage_cells(row: Mapping[str, Any], priced: bool) -> list[str]:
    cells = [
        _n(row["calls"]),
        _n(row["failed_attempts"]),
        _n(row["prompt_tokens"]),
        _percent(row["cached_share"]),
        _n(row["completion_tokens"]),
        f"{row['seconds_per_call']:.2f}",
    ]
    return [*cells, f"{row['cost'] or 0:,.4f}"] if priced else cells


def _print_time(time: Mapping[str, Any], console: Console) -> None:
    table = _table("", "")
    table.show_header = False
    endings = ", ".join(f"{n} {ending}" for ending, n in time["endings"].items())
    table.add_row("sessions", f"{time['sessions']} ({endings})" if endings else "none has ended")
    table.add_row("their wall time", duration(time["seconds"]))
    if time["dialogues_per_minute"] is not None:
        table.add_row("dialogues per minute", f"{time['dialogues_per_minute']:,.1f}")
    if time["first_call"] is not None:
        table.add_row("first to last call", duration(time["last_call"] - time["first_call"]))
    _section(console, "Time", table)


def _section(console: Console, title: str, table: Table) -> None:
    console.print()
    console.print(Text(title, "bold"))
    console.print(table)


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _n(number: int) -> str:
    """At most nine characters."""
    for bound, letter in ((10**12, "T"), (10**9, "G"), (10**7, "M")):
        if number >= bound:
            return f"{number / (10**6 if letter == 'M' else bound):,.1f}{letter}"
    return f"{number:,}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
