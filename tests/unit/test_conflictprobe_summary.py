"""The published tables of ConflictProbe come out of a file with the published counts."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from eval.conflictprobe.probe import write_csv
from eval.conflictprobe.summary import COLUMNS, SummaryError, measure, summarise, tables

JOINT = {
    ("present", "named"): 1831,
    ("absent", "unnamed"): 1038,
    ("absent", "named"): 866,
    ("present", "unnamed"): 105,
}
# present, named, present and named, in percent, as published; 960 replies each.
MODELS = {
    "v4": (72.6, 88.1, 70.6),
    "minimax": (56.4, 71.7, 54.0),
    "air": (42.9, 49.0, 37.9),
    "qwen36": (29.8, 72.2, 28.2),
}
CONDITIONS = {
    "drop ori": (62.6, 86.0, 61.1),
    "drop indep": (51.4, 65.6, 46.5),
    "keep ori": (47.4, 73.8, 45.8),
    "keep indep": (40.3, 55.5, 37.3),
}
RECALLED = 3802
CHECKED, WRONG = 1000, 56

PUBLISHED = """\
|  | n | old value present | conflict named | present and named | recall probe present |
| --- | --- | --- | --- | --- | --- |
| all | 3840 | 50.4% | 70.2% | 47.7% | 99.0% |

Joint outcomes over all 3,840: present+named 1,831, absent+unnamed 1,038, absent+named 866, present+unnamed 105.

| model | present | named | present and named |
| --- | --- | --- | --- |
| v4 | 72.6% | 88.1% | 70.6% |
| minimax | 56.4% | 71.7% | 54.0% |
| air | 42.9% | 49.0% | 37.9% |
| qwen36 | 29.8% | 72.2% | 28.2% |

| reasoning | history | present | named | present and named |
| --- | --- | --- | --- | --- |
| drop | ori | 62.6% | 86.0% | 61.1% |
| drop | indep | 51.4% | 65.6% | 46.5% |
| keep | ori | 47.4% | 73.8% | 45.8% |
| keep | indep | 40.3% | 55.5% | 37.3% |

By reasoning alone: drop 53.8%, keep 41.6% present and named; by history alone: ori 53.5%, indep 41.9%.

Judge and human labels agree on 94.4% of 1,000 items.
"""


def outcomes(percents: tuple[float, float, float]) -> dict[tuple[str, str], int]:
    """The joint counts over 960 replies: only one whole number has a given percentage of one decimal."""
    present, named, both = (
        next(count for count in range(961) if f"{100 * count / 960:.1f}" == f"{percent:.1f}") for percent in percents
    )
    return {
        ("present", "named"): both,
        ("present", "unnamed"): present - both,
        ("absent", "named"): named - both,
        ("absent", "unnamed"): 960 - present - named + both,
    }


def spread(groups: dict[str, tuple[float, float, float]], outcome: tuple[str, str]) -> Iterable[str]:
    return chain.from_iterable(repeat(name, outcomes(percents)[outcome]) for name, percents in groups.items())


def released() -> list[dict[str, Any]]:
    """3,840 rows with the published counts. People checked some, and the judge was wrong on 56 of them."""
    rows: list[dict[str, Any]] = []
    for (content, named), count in JOINT.items():
        models, conditions = list(spread(MODELS, (content, named))), list(spread(CONDITIONS, (content, named)))
        assert len(models) == len(conditions) == count
        for model, condition in zip(models, conditions, strict=True):
            reasoning, history = condition.split()
            row = dict.fromkeys(COLUMNS, "") | {"model": model, "reasoning": reasoning, "history": history}
            rows.append(row | {"surfaced": content, "conflict_named": named, "label_source": "machine_binary"})
    for at, row in enumerate(rows):
        row["recall"] = "present" if at < RECALLED else "absent"
    for at, row in enumerate(rows[:CHECKED]):
        row |= {"human_label": row["surfaced"], "label_source": "human"}
        if at < WRONG:
            row["surfaced"] = "absent"
    return rows


def test_the_published_figures_come_out(tmp_path: Path) -> None:
    path = tmp_path / "summary.csv"
    write_csv(path, released())
    summary = summarise(path)
    assert summary["overall"]["joint"] == {f"{content}+{named}": count for (content, named), count in JOINT.items()}
    assert {name: figures["n"] for name, figures in summary["by_model"].items()} == dict.fromkeys(MODELS, 960)
    assert {name: figures["n"] for name, figures in summary["by_condition"].items()} == dict.fromkeys(CONDITIONS, 960)
    # Among the published tables are the configurations, of which the card has the formula but no figures.
    text = tables(summary)
    head = "| configuration | n | present | named | present and named |\n"
    before, _, after = text.partition(head)
    configurations, _, end = after.partition("\n\n")
    assert before + end == PUBLISHED
    rows = configurations.splitlines()[1:]
    assert len(rows) == len({(row["model"], row["reasoning"], row["history"]) for row in released()})
    for row in rows:
        name, n, *_, good = (cell.strip() for cell in row.strip("|").split("|"))
        model, reasoning, history = name.split()
        own = [
            (entry["human_label"] or entry["surfaced"], entry["conflict_named"]) == ("present", "named")
            for entry in released()
            if (entry["model"], entry["reasoning"], entry["history"]) == (model, reasoning, history)
        ]
        assert (int(n), good) == (len(own), f"{100 * sum(own) / len(own):.1f}%")


def test_a_human_label_overrides_and_a_missing_verdict_is_counted() -> None:
    empty = dict.fromkeys(COLUMNS, "")
    figures = measure(
        [
            empty | {"surfaced": "absent", "human_label": "present", "conflict_named": "named", "recall": "present"},
            empty | {"surfaced": "absent", "conflict_named": "named", "recall": "absent"},
            empty | {"surfaced": "present", "conflict_named": "unnamed"},
            empty | {"human_label": "present", "recall": "present"},
        ]
    )
    assert figures == {
        "n": 3,
        "present": 2 / 3,
        "named": 2 / 3,
        "present_and_named": 1 / 3,
        "recall": 2 / 3,
        "recall_n": 3,
        "joint": {"present+named": 1, "present+unnamed": 1, "absent+named": 1, "absent+unnamed": 0},
        "excluded": 1,
        "recall_excluded": 1,
    }


def test_exclusions_are_printed_and_a_share_of_nothing_is_none(tmp_path: Path) -> None:
    path = tmp_path / "summary.csv"
    row = dict.fromkeys(COLUMNS, "") | {"model": "m", "reasoning": "drop", "history": "ori"}
    write_csv(path, [row, row | {"recall": "present"}])
    summary = summarise(path)
    assert summary["overall"]["present"] is None
    text = tables(summary)
    assert "| all | 0 | – | – | – | 100.0% |" in text
    assert text.endswith(
        "Excluded, because the judge gave no readable verdict: 2 replies to traps, 1 to recall questions.\n"
    )


def test_files_that_are_no_summary(tmp_path: Path) -> None:
    path = tmp_path / "summary.csv"
    with pytest.raises(SummaryError, match="there is no file"):
        summarise(path)
    path.write_bytes("模型".encode("gb18030"))
    with pytest.raises(SummaryError, match="can't be read"):
        summarise(path)
    path.write_text("model,reasoning\n", "utf-8")
    with pytest.raises(SummaryError, match="lacks the columns history, scenario"):
        summarise(path)
    write_csv(path, [])
    with pytest.raises(SummaryError, match="holds no judged conflicts"):
        summarise(path)
    path.write_text(",".join(COLUMNS) + "\nm,drop,ori,s,1,2,present,named\n", "utf-8")
    with pytest.raises(SummaryError, match="line 2: it has not as many fields as there are columns"):
        summarise(path)
    row = dict.fromkeys(COLUMNS, "") | {"reasoning": "drop", "history": "ori"}
    write_csv(path, [row, row | {"surfaced": "maybe"}])
    with pytest.raises(SummaryError, match=r"line 3: surfaced is 'maybe'; it must be .* present, absent, \(empty\)"):
        summarise(path)
