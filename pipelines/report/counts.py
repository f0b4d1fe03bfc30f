"""How many dialogues and samples there are of each kind, and the checks that the counts add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.run_folder import RunFolder
from synuc.sample import Outcome
from synuc.types import Label

NO_LABEL = "-"
"""Stands for the label of samples whose dialogue was not routed."""


def _check(what: str, ok: bool, detail: str) -> dict[str, Any]:
    return {"what": what, "ok": ok, "detail": detail}


def dialogue_counts(
    folder: RunFolder, ingest: Mapping[str, Any], finished: pa.Array
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Where the dialogues that were read are now; and whether the files say the same as the statistics."""
    seeds = folder.read("seeds", ["id"])["id"]
    read, taken, refused = ingest["read"], ingest["taken"], ingest["refused"]
    on_file = tally(folder.read("rejects", ["reason"]), "reason")
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


def sample_checks(folder: RunFolder, samples: pa.Table, totals: Mapping[str, int]) -> list[dict[str, Any]]:
    """Whether the samples are all there, once each."""
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


def count_by(table: pa.Table, *columns: str) -> dict[tuple[Any, ...], int]:
    """How many rows have each tuple of values, most first."""
    groups = table.select(list(columns)).group_by(list(columns)).aggregate([([], "count_all")]).to_pylist()
    groups.sort(key=lambda row: (-row["count_all"], *(str(row[column]) for column in columns)))
    return {tuple(row[column] for column in columns): row["count_all"] for row in groups}


def tally(table: pa.Table, column: str) -> dict[str, int]:
    """How many rows have each value of one column, most first."""
    return {value: n for (value,), n in count_by(table, column).items()}


def by_outcome(samples: pa.Table, column: str, values: Iterable[str]) -> dict[str, dict[str, int]]:
    """Outcomes per value of a column, in the order of `values`, of those that occur."""
    counts = count_by(samples, column, "outcome")
    rows = {
        str(value): {outcome.value: counts.get((value, outcome.value), 0) for outcome in Outcome} for value in values
    }
    return {value: {"total": sum(row.values()), **row} for value, row in rows.items() if any(row.values())}


def endings(samples: pa.Table) -> list[dict[str, Any]]:
    """Where samples were rejected or failed, with the share in all samples."""
    counts = count_by(samples, "outcome", "stage", "kind")
    return [
        {"outcome": outcome, "stage": stage, "kind": kind, "samples": n, "share": n / len(samples)}
        for (outcome, stage, kind), n in counts.items()
        if outcome != Outcome.ACCEPTED.value
    ]


def languages(accepted: pa.Table) -> dict[str, dict[str, int]]:
    """The labels of the accepted samples of each language, most samples first."""
    counts = count_by(accepted, "language", "label")
    return {
        language: {label.value: counts.get((language, label.value), 0) for label in Label}
        for language in tally(accepted, "language")
    }
