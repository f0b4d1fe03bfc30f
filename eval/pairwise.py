"""Pairwise comparison of two models' reasoning against the gold rationale (paper, section 6.2 and Appendix D).

Verdicts are of the first model against the second: win, tie or loss.
"""

from __future__ import annotations

import csv
import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from eval.agreement import agreement
from eval.folder import EvalFolder
from eval.judging import Row, ask_judge, conflicts, described, failures, grouped, joined
from eval.protocol import Item, Result
from synuc.effects import Fork, Program
from synuc.problem import Problem
from synuc.reading import visible
from synuc.replies import Reason, Reply
from synuc.types import CallFailed, Frozen

Verdict = Literal["win", "tie", "loss"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
COLUMNS = ("id", "rater", "verdict")


class ComparisonError(Problem):
    """Two runs that can't be compared, or human verdicts that can't be used."""


class Comparison(Reply):
    """The judge's verdict on two reasonings, shown as A and B."""

    analysis_a: Reason
    analysis_b: Reason
    better: Literal["A", "B", "tie"]


class Human(Frozen):
    """People's verdicts on an item: of the two evaluators, and the final one."""

    id: str
    evaluators: tuple[Verdict, Verdict]
    final: Verdict


@dataclass(frozen=True)
class Pairwise:
    """Which of two models' reasonings identifies the conflicting constraints better?

    `orders`: with `both` the judge is asked twice, each model shown first once; a verdict counts if both orders give
    it, else the item is a tie and `inconsistent`. With `random`, the paper's protocol, it is asked once, and a hash of
    the item's id says who is shown first. `human` verdicts are compared with each other and with the judge's; they can
    be added to a finished run. Items are those of `paired`.

    A result: `verdict`, `inconsistent`, and `judgments`, each with `shown_first` (`first` or `second`), `verdict`,
    `analysis_a` and `analysis_b`.
    """

    orders: Literal["both", "random"] = "both"
    human: tuple[Human, ...] = ()
    name = "pairwise"

    def snapshot(self) -> dict[str, Any]:
        return {"orders": self.orders}

    def program(self, item: Item) -> Program[dict[str, Any]]:
        """The judge's verdicts on an item. One to which a model has no answer fails with the kind `unanswered`."""
        for model in ("first", "second"):
            if item[model] is None:
                raise CallFailed("unanswered", f"the {model} run has no answer to this item")
        if self.orders == "both":
            judgments = yield Fork((_judge(item, swapped=False), _judge(item, swapped=True)))
        else:
            judgments = [(yield from _judge(item, swapped=_coin(item["id"])))]
        consistent = len({judgment["verdict"] for judgment in judgments}) == 1
        verdict = judgments[0]["verdict"] if consistent else "tie"
        return {"verdict": verdict, "inconsistent": not consistent, "judgments": judgments}

    def figures(self, items: Sequence[Item], results: Sequence[Result]) -> dict[str, Any]:
        """`overall`, and by name `subsets`: `n` and the counts and `shares` of `win`, `tie`, `loss`, and besides

        - `inconsistent`: `n` and `share` of items on which the orders disagree, None where one order was asked;
        - `position`: of the `decided` judgments (no ties), `first_shown` and the `share` won by the one shown first;
          with both orders 0.5 is without bias;
        - `failed` and `judge_failed`: excluded items by kind;
        - `human`: see `human_figures`; None without human verdicts.
        """
        rows = joined(items, results)
        values = [value for _, value in rows if value]
        inconsistent = sum(value["inconsistent"] for value in values)
        return {
            "items": len(items),
            "overall": _counts(_verdicts(rows)),
            "subsets": {name: _counts(_verdicts(part)) for name, part in grouped(rows, "subset").items()},
            "inconsistent": {"n": inconsistent, "share": inconsistent / len(values) if values else None}
            if self.orders == "both"
            else None,
            "position": _position([judgment for value in values for judgment in value["judgments"]]),
            "human": human_figures(rows, self.human) if self.human else None,
            **failures(results),
        }


def _coin(id: str) -> bool:
    return hashlib.sha256(f"pairwise/{id}".encode()).digest()[0] % 2 == 1


def _judge(item: Item, swapped: bool) -> Program[dict[str, Any]]:
    """The judge's verdict with the first model as A or, swapped, as B."""
    shown = ("second", "first") if swapped else ("first", "second")
    a, b = (visible(item[model]) for model in shown)
    comparison: Comparison = yield from ask_judge(
        "judge_pairwise", f"{item['id']}/{shown[0]}", Comparison, rationale=described(item), a=a, b=b
    )
    verdict: Verdict = "tie"
    if comparison.better != "tie":
        verdict = "win" if shown["AB".index(comparison.better)] == "first" else "loss"
    return {"shown_first": shown[0], "verdict": verdict, **comparison.model_dump(exclude={"better"})}


def _verdicts(rows: Sequence[Row]) -> list[Verdict]:
    return [value["verdict"] for _, value in rows if value]


def _counts(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    n, counts = len(verdicts), Counter(verdicts)
    shares = {verdict: counts[verdict] / n for verdict in VERDICTS} if n else None
    return {"n": n, **{verdict: counts[verdict] for verdict in VERDICTS}, "shares": shares}


def _position(judgments: Sequence[dict[str, Any]]) -> dict[str, Any]:
    winners = [
        ("first" if judgment["verdict"] == "win" else "second") == judgment["shown_first"]
        for judgment in judgments
        if judgment["verdict"] != "tie"
    ]
    share = sum(winners) / len(winners) if winners else None
    return {"decided": len(winners), "first_shown": sum(winners), "share": share}


def human_figures(rows: Sequence[Row], human: Sequence[Human]) -> dict[str, Any]:
    """How people judge, how far they agree, and how far the judge agrees with them (paper, Figures 4, 12 and 13).

    `n` items with human verdicts, `unlabelled` items without, `unknown` verdicts on other items, `adjudicated` items.
    `overall`, and by name `subsets`, each with `verdicts` (the final ones, counted as the judge's), `evaluators` (the
    one with the other) and `judge` (with the final verdict, where the judge has one): `eval.agreement.agreement` with
    intervals, or None without items.
    """
    labels = {label.id: label for label in human}
    labelled = [row for row in rows if row[0]["id"] in labels]
    return {
        "n": len(labelled),
        "unlabelled": len(rows) - len(labelled),
        "unknown": len(labels) - len(labelled),
        "adjudicated": sum(len(set(labels[item["id"]].evaluators)) > 1 for item, _ in labelled),
        "overall": _people(labelled, labels),
        "subsets": {name: _people(part, labels) for name, part in grouped(labelled, "subset").items()},
    }


def _people(rows: Sequence[Row], labels: Mapping[str, Human]) -> dict[str, Any]:
    people = [labels[item["id"]] for item, _ in rows]
    return {
        "verdicts": _counts([label.final for label in people]),
        "evaluators": _agreement([label.evaluators for label in people]),
        "judge": _agreement([(value["verdict"], labels[item["id"]].final) for item, value in rows if value]),
    }


def _agreement(pairs: Sequence[tuple[str, str]]) -> dict[str, Any] | None:
    return agreement(*map(list, zip(*pairs, strict=True)), intervals=True) if pairs else None


def read_human(path: Path) -> tuple[Human, ...]:
    """People's verdicts from a CSV file with the columns `id`, `rater` and `verdict` (win, tie or loss).

    The two raters with the most rows (of several, the first in the file) are the evaluators, who judge every item.
    Where they disagree, the verdict of the item's third rater is the final one (paper, Appendix D).

    Raises:
        ComparisonError: naming the line or the item.
    """
    rated: dict[str, dict[str, str]] = defaultdict(dict)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if missing := set(COLUMNS) - set(reader.fieldnames or ()):
                raise ComparisonError(f"{path}: no column {', '.join(sorted(missing))}; it needs {', '.join(COLUMNS)}")
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                id, rater, verdict = (str(row[column] or "").strip() for column in COLUMNS)
                verdict = verdict.lower()
                if verdict not in VERDICTS:
                    raise ComparisonError(f"{where}: {verdict!r} is no verdict; write {', '.join(VERDICTS)}")
                if rater in rated[id]:
                    raise ComparisonError(f"{where}: {rater!r} has already judged {id!r}; leave one verdict")
                rated[id][rater] = verdict
    except OSError as error:
        raise ComparisonError(f"can't read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ComparisonError(f"{path} is not UTF-8; save it as UTF-8") from None
    raters = Counter(rater for verdicts in rated.values() for rater in verdicts).most_common(2)
    if len(raters) < 2:
        raise ComparisonError(f"{path}: verdicts of two raters are needed")
    evaluators = (raters[0][0], raters[1][0])
    return tuple(_human(path, id, verdicts, evaluators) for id, verdicts in rated.items())


def _human(path: Path, id: str, verdicts: dict[str, str], evaluators: tuple[str, str]) -> Human:
    for rater in evaluators:
        if rater not in verdicts:
            raise ComparisonError(f"{path}: {rater!r} has not judged {id!r}, as both evaluators must")
    one, other = (verdicts[rater] for rater in evaluators)
    thirds = [verdict for rater, verdict in verdicts.items() if rater not in evaluators]
    if one != other and len(thirds) != 1:
        raise ComparisonError(
            f"{path}: {evaluators[0]!r} and {evaluators[1]!r} disagree on {id!r}; add the verdict of one third rater"
        )
    return Human.model_validate({"id": id, "evaluators": (one, other), "final": one if one == other else thirds[0]})


def paired(first: EvalFolder, second: EvalFolder) -> list[Item]:
    """The implicit conflicts of two finished classification runs, with their answers as `first` and `second`.

    An answer is None where its run failed on the item.

    Raises:
        NoConflicts: the runs have none.
        ComparisonError: they are about different items.
    """
    items = {item["id"]: item for item in conflicts(first.items())}
    if items != {item["id"]: item for item in conflicts(second.items())}:
        raise ComparisonError(
            f"{first.path} and {second.path} are about different items; classify the same benchmark with both models"
        )
    one, other = ({result.id: result.value or {} for result in run.results()} for run in (first, second))
    return [{**item, "first": one[id].get("answer"), "second": other[id].get("answer")} for id, item in items.items()]
