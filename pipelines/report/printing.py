"""A run's figures as tables for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from pipelines.report.tables import new_table, section, short
from pipelines.reviewed import summary
from synuc.figures import percent
from synuc.progress import duration
from synuc.sample import Outcome
from synuc.types import Label


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
        table = new_table("schema", "updates", "R+", "R-", "B+", "B-", "recorded")
        for speaking, row in data["memory"].items():
            table.add_row(speaking, *map(short, row.values()))
        section(console, "Memory", table)
    if data["reviewed"]["successes"] or data["reviewed"]["failures"]:
        console.print(summary(data["reviewed"]))
    if "quality" in data:
        from pipelines.quality.printing import print_quality

        print_quality(data["quality"], console)


def _print_dialogues(data: Mapping[str, Any], console: Console) -> None:
    dialogues = data["dialogues"]
    table = new_table("", "")
    table.show_header = False
    table.add_row("read", short(dialogues["read"]))
    for reason, n in dialogues["refused"].items():
        table.add_row(f"  refused: {reason}", short(n))
    table.add_row("  taken", short(dialogues["taken"]))
    table.add_row("    finished", short(dialogues["finished"]))
    table.add_row("    unfinished", short(dialogues["unfinished"]))
    section(console, "Dialogues", table)
    if dialogues["trimmed"]:
        console.print(
            f"{short(dialogues['trimmed'])} of those taken had an unanswered last message, which was cut off."
        )
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
        table = new_table(first, "samples", *(outcome.value for outcome in Outcome), "accepted %")
        for name, row in data[key].items():
            table.add_row(name, *map(short, row.values()), percent(row["accepted"] / row["total"]))
        if key == "labels":
            totals = data["samples"]
            share = totals["accepted"] / totals["total"]
            table.add_row("all", *map(short, totals.values()), percent(share), style="bold")
        section(console, title, table)
        if key == "labels" and data["endings"]:
            _print_endings(data["endings"], console)


def _print_endings(endings: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = new_table("ended", "samples", "of all")
    for row in endings:
        where = f"{row['outcome']} at {row['stage'] or 'the start'}" + (f": {row['kind']}" if row["kind"] else "")
        table.add_row(Text(where), short(row["samples"]), percent(row["share"]))
    section(console, "Rejected and failed", table)


def _print_accepted(accepted: Mapping[str, Any], console: Console) -> None:
    if not accepted["labels"]:
        return
    table = new_table("label", "samples", "messages", "turns", "max", "tokens", "max")
    for label, row in accepted["labels"].items():
        table.add_row(
            label,
            short(row["samples"]),
            f"{row['messages']:.2f}",
            f"{row['turns']:.2f}",
            short(row["max_turns"]),
            f"{row['tokens']:,.1f}",
            short(row["max_tokens"]),
            style="bold" if label == "all" else None,
        )
    section(console, "Accepted samples, averages", table)
    console.print(Text(f"Messages and turns of the history; tokens with the follow-up, by {accepted['tokenizer']}."))


def _print_languages(languages: Mapping[str, Mapping[str, int]], console: Console) -> None:
    if not languages:
        return
    table = new_table("language", *Label, "all")
    for language, row in languages.items():
        table.add_row(language, *map(short, row.values()), short(sum(row.values())))
    section(console, "Accepted samples per language", table)


def _print_usage(usage: Mapping[str, Any], console: Console) -> None:
    if not usage["calls"]:
        return
    priced = usage["cost"] is not None
    for title, first, key in (("Calls per stage", "stage", "by_stage"), ("Calls per model", "model", "by_model")):
        table = new_table(
            first, "calls", "failed", "prompt", "cached", "answer", "s/call", *(["cost"] if priced else [])
        )
        # A model's name may be long.
        table.columns[0].overflow = "fold"
        for row in usage[key]:
            table.add_row(Text(row[first]), *_usage_cells(row, priced))
        if key == "by_stage":
            table.add_row("all", *_usage_cells(usage, priced), style="bold")
        section(console, title, table)
    console.print("Prompt and answer in tokens; cached: share of the prompt tokens.")
    wasted = (
        (usage["repeated_calls"], "calls were made again, their dialogues having been interrupted"),
        (usage["calls_of_unfinished"], "calls belong to dialogues that aren't finished"),
    )
    for n, what in wasted:
        if n:
            console.print(f"{short(n)} {what}.")


def _usage_cells(row: Mapping[str, Any], priced: bool) -> list[str]:
    cells = [
        short(row["calls"]),
        short(row["failed_attempts"]),
        short(row["prompt_tokens"]),
        percent(row["cached_share"]),
        short(row["completion_tokens"]),
        f"{row['seconds_per_call']:.2f}",
    ]
    return [*cells, f"{row['cost'] or 0:,.4f}"] if priced else cells


def _print_time(time: Mapping[str, Any], console: Console) -> None:
    table = new_table("", "")
    table.show_header = False
    endings = ", ".join(f"{n} {ending}" for ending, n in time["endings"].items())
    table.add_row("sessions", f"{time['sessions']} ({endings})" if endings else "none has ended")
    table.add_row("their wall time", duration(time["seconds"]))
    if time["dialogues_per_minute"] is not None:
        table.add_row("dialogues per minute", f"{time['dialogues_per_minute']:,.1f}")
    if time["first_call"] is not None:
        table.add_row("first to last call", duration(time["last_call"] - time["first_call"]))
    section(console, "Time", table)
