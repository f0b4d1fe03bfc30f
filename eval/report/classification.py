"""The classification protocol in a report: the paper's Table 4 with our rows, and where the errors are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from operator import eq
from typing import Any

from eval.bench import BenchItem
from eval.comparison import mcnemar, paired_difference
from eval.metrics import interval
from eval.report.blocks import (
    Block,
    Case,
    Cases,
    Estimate,
    Figure,
    Figures,
    Message,
    Row,
    Section,
    Table,
    Value,
    bounds,
    p_value,
    percent,
    quoted,
)
from eval.report.plots import LABELS, Bar, bars, heat_map, reliability
from eval.report.published import published
from eval.report.runs import Run, grouped, models
from eval.uc import predicted_label
from synuc.types import Label

FIGURES = {"P": "precision", "R": "recall", "F1": "f1", "R(IC)": "recall_ic"}
PAPERS_SUBSETS = ("WildChat-UC", "LMSYS-UC", "ShareGPT-UC")
COMPARISONS = ("synuc_figure5", "synuc_table5", "synuc_table6", "synuc_table7")
"""What the paper compares by classification besides Table 4: ablations, retention, retrieval and generator models."""

ERRORS = 10
"""Errors of a run that are shown in full."""


def classification(runs: Sequence[Run]) -> Section:
    """All that runs of `synuc eval uc` show."""
    note = (
        "Macro precision (P), recall (R) and F1, and recall on implicit conflicts, R(IC), in percent. An answer "
        "without a readable label counts as wrong. Rows in grey are the paper's, on its own UC-Bench: they compare "
        "with ours only where that is the benchmark."
    )
    blocks: list[Block] = [*_main_tables(runs), _counts(runs), _bars(runs), _confusions(runs)]
    if calibrated := [run for run in runs if run.metrics["calibration"]]:
        blocks += [_calibration_table(calibrated), _calibration_plots(calibrated)]
    if pairs := _pairs(runs):
        blocks.append(pairs)
    blocks += [quoted(published(name), folded=True) for name in COMPARISONS]
    blocks += [_slices(run) for run in runs]
    blocks += [cases for run in runs if (cases := _errors(run)).cases]
    return Section("uc", "Classification", note, tuple(blocks))


def _main_tables(runs: Sequence[Run]) -> list[Block]:
    """The paper's rows stand below ours, or in a table of their own where the subsets are others."""
    present = {name for run in runs for name in run.metrics["subsets"]}
    subsets = [name for name in PAPERS_SUBSETS if name in present]
    subsets += sorted(present - set(PAPERS_SUBSETS))
    groups = grouped(runs)
    rows = [Row((_named(group), models(group), *_figures(group, subsets))) for group in groups]
    caption = (
        "Classification overall and by subset (as the paper's Table 4). A row is a run; runs of one group "
        "(--set group=NAME), or else those that differ in nothing but their seed, are one row: their mean and its 95% "
        "t-interval"
    )
    several = [f"{_named(group)}: {', '.join(run.name for run in group)}" for group in groups if len(group) > 1]
    caption += f" ({'; '.join(several)})." if several else "."
    if absent := _absent(runs):
        caption += f" Labels that no item has, and that count with 0 in the means: {absent}."
    if present <= set(PAPERS_SUBSETS):
        caption += " Published intervals are over five runs."
        return [_by_subset(caption, ("Run", "Model"), subsets, [*rows, *_published_rows(subsets, ("",))])]
    papers = "Published: classification on UC-Bench, Table 4 of the paper. Intervals are over five runs."
    return [
        _by_subset(caption, ("Run", "Model"), subsets, rows),
        _by_subset(papers, ("Method",), PAPERS_SUBSETS, _published_rows(PAPERS_SUBSETS)),
    ]


def _absent(runs: Sequence[Run]) -> str:
    """The labels that are missing, by subset; empty if none is."""
    found = {
        name: ", ".join(part["absent"])
        for run in runs
        for name, part in {**run.metrics["subsets"], "overall": run.metrics["overall"]}.items()
        if part["absent"]
    }
    return "; ".join(f"{labels} in {name}" for name, labels in found.items())


def _by_subset(caption: str, names: tuple[str, ...], subsets: Sequence[str], rows: Sequence[Row]) -> Table:
    parts = ("Overall", *subsets)
    columns = (*names, *(name for _ in parts for name in FIGURES))
    spans = (("", len(names)), *((name, len(FIGURES)) for name in parts))
    return Table(caption, columns, tuple(rows), spans, frozenset(range(len(names), len(columns))))


def _named(group: Sequence[Run]) -> str:
    if len(group) == 1:
        return group[0].name
    return f"{group[0].run.settings.group or group[0].name + ' …'} ({len(group)} runs)"


def _figures(group: Sequence[Run], subsets: Sequence[str]) -> list[Value]:
    values: list[Value] = []
    for subset in (None, *subsets):
        for key in FIGURES.values():
            parts = [run.metrics["overall"] if subset is None else run.metrics["subsets"].get(subset) for run in group]
            shares = [part[key] for part in parts if part and part[key] is not None]
            if len(shares) < len(parts):
                values.append(None)
                continue
            mean, half_width = interval([100 * share for share in shares])
            values.append(Estimate(mean, half_width))
    return values


def _published_rows(subsets: Sequence[str], blank: tuple[str, ...] = ()) -> list[Row]:
    """The means of the paper's Table 4; `blank`: cells between a method's name and its figures."""
    names = [f"{subset} {figure}" for subset in ("Overall", *subsets) for figure in FIGURES]
    records = published("synuc_table4").records()
    intervals = {record["Method"]: record for record in records if record["Statistic"] == "95% CI"}
    rows: list[Row] = []
    group = None
    for record in records:
        if record["Statistic"] != "mean":
            continue
        if record["Group"] != group:
            group = record["Group"]
            rows.append(Row((f"Paper, Table 4: {group}",), quoted=True, heading=True))
        half_widths = intervals.get(record["Method"], {})
        values = [_estimate(record.get(name), half_widths.get(name)) for name in names]
        rows.append(Row((record["Method"], *blank, *values), quoted=True))
    return rows


def _estimate(mean: Value, half_width: Value) -> Value:
    return Estimate(mean, half_width) if isinstance(mean, float) and isinstance(half_width, float) else mean


def _counts(runs: Sequence[Run]) -> Table:
    kinds = {"unparseable": "Unparseable", "refusal": "Refusal", "cut_off": "Cut off", "failed": "Failed"}
    rows = []
    for run in runs:
        overall = run.metrics["overall"]
        shares = [percent(overall[key]) for key in ("accuracy", "f1", "recall_ic")]
        counts = [run.metrics["kinds"][kind] for kind in kinds]
        rows.append(Row((run.name, run.model, int(overall["n"]), *shares, *counts)))
    caption = "Each run: items, overall shares in percent, and answers without a readable label by kind."
    columns = ("Run", "Model", "Items", "Accuracy", "F1", "R(IC)", *kinds.values())
    return Table(caption, columns, tuple(rows), best=frozenset({3, 4, 5}))


def _bars(runs: Sequence[Run]) -> Figures:
    figures = []
    shares = (("f1", "macro F1, %", "blue"), ("recall_ic", "recall on implicit conflicts, %", LABELS[Label.IC]))
    for key, title, colour in shares:
        known = [run for run in runs if run.metrics["overall"][key] is not None]
        if not known:
            continue
        rows = [Bar(run.name, run.metrics["overall"][key], tuple(run.metrics["intervals"][key])) for run in known]
        caption = f"Overall {title.removesuffix(', %')} with 95% bootstrap intervals over items."
        figures.append(Figure(f"uc-{key}", caption, bars(title, rows, colour)))
    return Figures(tuple(figures))


def _confusions(runs: Sequence[Run]) -> Figures:
    return Figures(
        tuple(
            Figure(
                f"uc-confusion-{at}",
                f"{run.name}: gold labels against predicted ones; items and share of the row.",
                heat_map(f"Confusion matrix of {run.name}", run.metrics["confusion"], "gold", "predicted"),
            )
            for at, run in enumerate(runs, 1)
        )
    )


def _calibration_table(runs: Sequence[Run]) -> Table:
    keys = {"ece": "ECE", "mce": "MCE", "brier": "Brier", "nll": "NLL"}
    rows = [
        Row((run.name, run.metrics["calibration"]["n"], *(run.metrics["calibration"][key] for key in keys)))
        for run in runs
    ]
    caption = "Calibration of the label's probability: expected and maximum error, Brier score (0 to 2), NLL in nats."
    return Table(caption, ("Run", "Items", *keys.values()), tuple(rows), digits=3)


def _calibration_plots(runs: Sequence[Run]) -> Figures:
    figures = []
    for at, run in enumerate(runs, 1):
        filled = [one for one in run.metrics["calibration"]["bins"] if one["n"]]
        bins = [(one["confidence"], one["accuracy"], one["n"]) for one in filled]
        drawing = reliability(f"Reliability of {run.name}", bins)
        figures.append(Figure(f"uc-reliability-{at}", f"{run.name}: confidence against accuracy.", drawing))
    return Figures(tuple(figures))


def _pairs(runs: Sequence[Run]) -> Table | None:
    rows = []
    answers = [_answers(run) for run in runs]
    for (first, a), (second, b) in combinations(zip(runs, answers, strict=True), 2):
        gold = [label for label, _ in a.values()]
        if {id: label for id, (label, _) in a.items()} != {id: label for id, (label, _) in b.items()}:
            continue
        one, other = [predicted for _, predicted in a.values()], [b[id][1] for id in a]
        test = mcnemar(list(map(eq, gold, one)), list(map(eq, gold, other)))
        counts = (len(gold), int(test["only_first"]), int(test["only_second"]))
        f1 = paired_difference(gold, one, other, "f1")
        difference = (percent(f1["difference"]), bounds((f1["low"], f1["high"])))
        rows.append(Row((first.name, second.name, *counts, p_value(test["p"]), *difference)))
    if not rows:
        return None
    caption = (
        "Runs over the same items: items that only one of the two gets right, and McNemar's exact test of them; by how "
        "much the macro F1 of the first is higher, in points of percent, with the 95% interval of a paired bootstrap."
    )
    columns = ("First", "Second", "Items", "Only first", "Only second", "p", "F1 difference", "95% interval")
    return Table(caption, columns, tuple(rows))


def _answers(run: Run) -> dict[str, tuple[Label, Label | None]]:
    """The gold and the predicted label of each item."""
    predicted = {result.id: predicted_label(result) for result in run.folder.results()}
    return {item["id"]: (Label(item["label"]), predicted[item["id"]]) for item in run.folder.items()}


def _slices(run: Run) -> Table:
    rows = []
    for feature, values in run.metrics["slices"].items():
        rows.append(Row((feature.replace("_", " "),), heading=True))
        for value, part in values.items():
            labels = " / ".join(str(part["labels"][label.value]) for label in Label)
            accuracy, f1, recall = percent(part["accuracy"]), percent(part["f1"]), percent(part["recall_ic"])
            rows.append(Row((value, part["n"], labels, accuracy, bounds(part["accuracy_interval"]), f1, recall)))
    columns = ("Slice", "Items", "ND / ER / IC", "Accuracy", "95% interval", "F1", "R(IC)")
    caption = f"{run.name}: figures by slice, F1 over the labels that occur in it."
    return Table(caption, columns, tuple(rows), folded=True)


def _errors(run: Run) -> Cases:
    """Errors, conflicts that were taken for normal dialogue first."""
    results = {result.id: result for result in run.folder.results()}
    wrong: list[tuple[int, Case]] = []
    for row in run.folder.items():
        item, result = BenchItem.model_validate(row), results[row["id"]]
        predicted = predicted_label(result)
        if predicted is item.label:
            continue
        missed = item.label is Label.IC
        rank = 0 if missed and predicted is Label.ND else 1 if missed else 2
        wrong.append((rank, _case(item, predicted, result.value, f"{result.kind}: {result.reason}")))
    wrong.sort(key=lambda error: error[0])
    shown = tuple(case for _, case in wrong[:ERRORS])
    caption = f"{run.name}: {len(shown)} of {len(wrong)} errors, conflicts taken for normal dialogue first."
    return Cases(caption, shown)


def _case(item: BenchItem, predicted: Label | None, value: Mapping[str, Any] | None, failure: str) -> Case:
    dialogue = [Message("system", item.history.system)] if item.history.system else []
    for turn in item.history.turns:
        dialogue += [Message("user", turn.user), Message("assistant", turn.assistant)]
    why = ""
    if item.rationale:
        sides = [("earlier", item.rationale.historical), ("new", item.rationale.new)]
        lines = [f"{side}: {constraint}" for side, constraints in sides for constraint in constraints]
        why = "\n".join([*lines, item.rationale.text]).strip()
    answer = value["answer"] if value else f"(no answer: {failure})"
    name = predicted.value if predicted else value["kind"] if value else "failed"
    return Case(item.id, item.label.value, name, tuple(dialogue), item.follow_up, why, Message("model", answer))
