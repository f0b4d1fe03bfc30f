"""The tables of ConflictProbe ("Current results") from a file of judged conflicts, results/summary.csv."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from synuc.figures import percent
from synuc.problem import Problem

COLUMNS = (
    "model",
    "reasoning",
    "history",
    "scenario",
    "source_turn",
    "trap_turn",
    "surfaced",
    "conflict_named",
    "recall",
    "label_source",
    "human_label",
    "human_note",
)
"""The columns of results/summary.csv ("Result columns")."""

CONDITIONS = (("drop", "ori"), ("drop", "indep"), ("keep", "ori"), ("keep", "indep"))
"""The lifecycle conditions (reasoning, history), in the order of the published table."""

_CONTENT = ("present", "absent", "")
_VALUES = {
    "reasoning": ("keep", "drop"),
    "history": ("ori", "indep"),
    "surfaced": _CONTENT,
    "human_label": _CONTENT,
    "recall": _CONTENT,
    "conflict_named": ("named", "unnamed", ""),
}

Row = Mapping[str, Any]


class SummaryError(Problem):
    """A file of judged conflicts that can't be read; the message names the line."""


def final(row: Row) -> str:
    """Whether the earlier value is in the reply to the trap: a human's label, where there is one, else the judge's."""
    return str(row["human_label"] or row["surfaced"])


def measure(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures over judged conflicts.

    `n` traps with both verdicts, and over them the shares (0 to 1, None if there are none) `present`, `named` and
    `present_and_named`, and the counts `joint`; `recall`, the share of present over the `recall_n` recall replies with
    a verdict; `excluded` and `recall_excluded`: replies without one, because the judge failed or was unreadable.
    """
    joint = Counter((final(row), row["conflict_named"]) for row in rows if final(row) and row["conflict_named"])
    recalls = [row["recall"] for row in rows if row["recall"]]
    n, both = joint.total(), joint["present", "named"]
    return {
        "n": n,
        "present": _share(both + joint["present", "unnamed"], n),
        "named": _share(both + joint["absent", "named"], n),
        "present_and_named": _share(both, n),
        "recall": _share(recalls.count("present"), len(recalls)),
        "recall_n": len(recalls),
        "joint": {f"{c}+{d}": joint[c, d] for c in ("present", "absent") for d in ("named", "unnamed")},
        "excluded": len(rows) - n,
        "recall_excluded": len(rows) - len(recalls),
    }


def summarise(csv_path: Path) -> dict[str, Any]:
    """The published figures from results/summary.csv, each as `measure` gives them.

    `overall`; `by_model`, best first; `by_condition` (`drop ori`, ...), `by_reasoning`, `by_history`;
    `by_configuration` (`v4 drop ori`, ...); and `human`: how many labels people checked (`n`), and the share of them
    with which the judge agrees (`agreement`) on whether the earlier value is present.

    Raises:
        SummaryError: the file is missing, empty, or a line isn't as it should be.
    """
    rows = _rows(csv_path)
    checked = [row for row in rows if row["human_label"] and row["surfaced"]]
    by_model = _by(rows, lambda row: row["model"])
    conditions = _by(rows, lambda row: f"{row['reasoning']} {row['history']}")
    return {
        "overall": measure(rows),
        "by_model": dict(sorted(by_model.items(), key=lambda entry: -(entry[1]["present"] or 0.0))),
        "by_condition": {name: conditions[name] for name in map(" ".join, CONDITIONS) if name in conditions},
        "by_reasoning": _by(rows, lambda row: row["reasoning"]),
        "by_history": _by(rows, lambda row: row["history"]),
        "by_configuration": _by(rows, lambda row: f"{row['model']} {row['reasoning']} {row['history']}"),
        "human": {
            "n": len(checked),
            "agreement": _share(sum(row["human_label"] == row["surfaced"] for row in checked), len(checked)),
        },
    }


def tables(summary: Mapping[str, Any]) -> str:
    """What `summarise` gives, as Markdown: the published tables with one decimal of percent."""
    overall = summary["overall"]
    n = overall["n"]
    keys = ("present", "named", "present_and_named")
    joint = sorted(overall["joint"].items(), key=lambda outcome: -outcome[1])
    parts = [
        _table(
            ("", "n", "old value present", "conflict named", "present and named", "recall probe present"),
            [("all", str(n), *(_percent(overall[key]) for key in (*keys, "recall")))],
        ),
        f"Joint outcomes over all {n:,}: {', '.join(f'{name} {count:,}' for name, count in joint)}.",
        _table(
            ("model", "present", "named", "present and named"),
            [(name, *(_percent(figures[key]) for key in keys)) for name, figures in summary["by_model"].items()],
        ),
        _table(
            ("reasoning", "history", "present", "named", "present and named"),
            [
                (*name.split(), *(_percent(figures[key]) for key in keys))
                for name, figures in summary["by_condition"].items()
            ],
        ),
        f"By reasoning alone: {_alone(summary['by_reasoning'], ('drop', 'keep'))} present and named; "
        f"by history alone: {_alone(summary['by_history'], ('ori', 'indep'))}.",
    ]
    if len(summary["by_configuration"]) > 1:
        parts.append(
            _table(
                ("configuration", "n", "present", "named", "present and named"),
                [
                    (name, str(figures["n"]), *(_percent(figures[key]) for key in keys))
                    for name, figures in summary["by_configuration"].items()
                ],
            )
        )
    if human := summary["human"]["n"]:
        parts.append(f"Judge and human labels agree on {_percent(summary['human']['agreement'])} of {human:,} items.")
    if overall["excluded"] or overall["recall_excluded"]:
        parts.append(
            f"Excluded, because the judge gave no readable verdict: {overall['excluded']:,} replies to traps, "
            f"{overall['recall_excluded']:,} to recall questions."
        )
    return "\n\n".join(parts) + "\n"


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise SummaryError(f"there is no file {path}; name a results/summary.csv of ConflictProbe")
    try:
        file = io.StringIO(path.read_text("utf-8-sig"), newline="")
    except (OSError, UnicodeDecodeError) as error:
        raise SummaryError(f"{path} can't be read: {error}") from None
    with file:
        reader = csv.DictReader(file)
        if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
            raise SummaryError(f"{path} lacks the columns {', '.join(missing)}")
        rows = []
        for row in reader:
            if None in row.values() or None in row:
                raise SummaryError(f"{path}, line {reader.line_num}: it has not as many fields as there are columns")
            for column, allowed in _VALUES.items():
                if row[column] not in allowed:
                    choices = ", ".join(value or "(empty)" for value in allowed)
                    raise SummaryError(
                        f"{path}, line {reader.line_num}: {column} is {row[column]!r}; it must be one of: {choices}"
                    )
            rows.append(row)
    if not rows:
        raise SummaryError(f"{path} holds no judged conflicts")
    return rows


def _by(rows: Sequence[Row], key: Callable[[Row], str]) -> dict[str, dict[str, Any]]:
    groups: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return {name: measure(groups[name]) for name in sorted(groups)}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _percent(share: float | None) -> str:
    return percent(share, sign="%")


def _alone(groups: Mapping[str, Any], order: Sequence[str]) -> str:
    return ", ".join(f"{name} {_percent(groups[name]['present_and_named'])}" for name in order if name in groups)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
