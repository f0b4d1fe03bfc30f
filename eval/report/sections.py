"""The paper's other protocols in a report: response, rationale coverage and pairwise attribution."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from eval.comparison import correlation
from eval.report.blocks import (
    Block,
    Figure,
    Figures,
    Row,
    Section,
    Table,
    Value,
    bounds,
    counted,
    p_value,
    percent,
    quoted,
)
from eval.report.plots import Point, heat_map, stacked
from eval.report.plots import correlation as correlation_plot
from eval.report.published import published
from eval.report.runs import Run

VERDICTS = {"win": "green", "tie": "grey", "loss": "vermilion"}
ATTRIBUTION = {
    "right, covered": "green",
    "right, missing": "sky",
    "wrong, covered": "orange",
    "wrong, missing": "vermilion",
}
"""Label correctness by whether the gold rationale is covered, each with its colour (paper, Figure 11)."""


def response(runs: Sequence[Run], classified: Sequence[Run]) -> Section:
    """Runs of `synuc eval response`, beside those of `synuc eval uc` of the same models."""
    split = {by: sorted({name for run in runs for name in run.metrics[by]}) for by in ("subsets", "languages")}
    rows = []
    for run in runs:
        data, overall = run.metrics, run.metrics["overall"]
        found = [data[by].get(name) for by, names in split.items() for name in names]
        parts = [percent(part["accuracy"]) if part else None for part in found]
        counts = (data["cut_off"], data["empty"], counted(data["failed"]), counted(data["judge_failed"]))
        accuracy = percent(overall["accuracy"])
        rows.append(Row((run.name, run.model, overall["n"], accuracy, bounds(overall["interval"]), *parts, *counts)))
    columns = ("Run", "Model", "Judged", "Resp. Acc.", "95% interval", *split["subsets"], *split["languages"])
    columns += ("Cut off", "Empty", "Failed", "Judge failed")
    spans = (("", 5), ("by subset", len(split["subsets"])), ("by language", len(split["languages"])), ("", 4))
    caption = "Share of implicit conflicts that the answer recognises, in percent, with the 95% Wilson interval."
    blocks: list[Block] = [Table(caption, columns, tuple(rows), spans, best=frozenset({3}))]
    points = _both_protocols(runs, classified)
    if len(points) >= 3:
        blocks += _correlation(points)
    blocks.append(quoted(published("synuc_table1")))
    note = (
        "The model answers an implicit conflict without any instruction; a judge, who knows the gold rationale, says "
        "whether the answer recognises it (section 3.2). Where the model failed, it recognised nothing; where the "
        "judge did, the answer is left out. Both are counted."
    )
    return Section("response", "Response", note, tuple(blocks))


def _both_protocols(answered: Sequence[Run], classified: Sequence[Run]) -> list[Point]:
    """Recall on implicit conflicts and response accuracy of each model with both, as means over its runs."""
    # By all that names a model: two folders or adapters may end alike.
    models = {json.dumps(run.method["engines"]["model"], sort_keys=True): run.model for run in answered}
    points = []
    for model, name in models.items():
        recalls, accuracies = _of_model(model, classified, "recall_ic"), _of_model(model, answered, "accuracy")
        if recalls and accuracies:
            points.append(Point(name or "", fmean(recalls), fmean(accuracies)))
    return points


def _of_model(model: str, runs: Sequence[Run], figure: str) -> list[float]:
    own = [run for run in runs if json.dumps(run.method["engines"]["model"], sort_keys=True) == model]
    return [share for run in own if (share := run.metrics["overall"][figure]) is not None]


def _correlation(points: Sequence[Point]) -> list[Block]:
    table = published("synuc_table1")
    papers = [
        Point(str(one["Model"]), float(one["R(IC)"] or 0) / 100, float(one["Resp. Acc."] or 0) / 100)
        for one in table.records()
    ]
    figures = correlation([point.x for point in points], [point.y for point in points])
    cells = [p_value(figures[key]) if key.endswith("_p") else figures[key] for key in _CORRELATION]
    label = "Response accuracy against recall on implicit conflicts"
    drawing = correlation_plot(label, points, papers, "recall on implicit conflicts, %", "response accuracy, %")
    caption = f"{label}; grey: the paper's 16 models. The line is the linear fit of ours."
    paper = published("synuc_figure9")
    pearson, spearman, linear = paper.rows
    rows = (
        Row(("ours", len(points), *cells)),
        Row((f"Paper, {paper.table}", len(papers), *pearson[1:], *spearman[1:], linear[1]), quoted=True),
    )
    columns = ("", "Models", *_CORRELATION.values())
    return [
        Figures((Figure("correlation", caption, drawing),)),
        Table("Correlation of the two protocols over models.", columns, rows, digits=4),
    ]


_CORRELATION = {
    "pearson_r": "Pearson r",
    "pearson_p": "p",
    "spearman_rho": "Spearman ρ",
    "spearman_p": "p",
    "r_squared": "R²",
}


def rationale(runs: Sequence[Run]) -> Section:
    """Runs of `synuc eval rationale` (paper, Figures 10 and 11)."""
    rows, maps, bars = [], [], {}
    for at, run in enumerate(runs, 1):
        overall = run.metrics["overall"]
        failed = (counted(run.metrics["failed"]), counted(run.metrics["judge_failed"]))
        rows.append(Row((run.name, run.judged, "Overall", *_covered(overall), *failed)))
        subsets = run.metrics["subsets"].items()
        rows += [Row((run.name, run.judged, name, *_covered(part), None, None)) for name, part in subsets]
        drawing = heat_map(f"Rationale coverage of {run.name}", overall["joint"], "coverage", "predicted", of_all=True)
        maps.append(Figure(f"rationale-{at}", f"{run.name}: coverage against label; items and share of all.", drawing))
        covered, missing = overall["by_coverage"]["covered"], overall["by_coverage"]["none"]
        right = (covered["correct"], missing["correct"])
        wrong = (covered["n"] - covered["correct"], missing["n"] - missing["correct"])
        bars[run.name] = dict(zip(ATTRIBUTION, (*right, *wrong), strict=True))
    names = ("Run", "Answers of", "Subset", "Judged", "Complete", "Partial", "None")
    columns = (*names, *_ACCURACIES, "Failed", "Judge failed")
    spans = (("", 4), ("Coverage, items", 3), ("R(IC) where coverage is", 4), ("", 2))
    plot = stacked("implicit conflicts, %", bars, ATTRIBUTION)
    note = "Whether a model's reasoning covers the gold rationale of an implicit conflict, as a judge sees it."
    blocks = (
        Table("Rationale coverage.", columns, tuple(rows), spans),
        Figures(tuple(maps)),
        Figures((Figure("rationale-bars", "The label, and whether the gold rationale is covered.", plot),)),
    )
    return Section("rationale", "Rationale coverage", note, blocks)


_ACCURACIES = ("Complete", "Partial", "None", "Complete or partial")


def _covered(part: Mapping[str, Any]) -> list[Value]:
    """Judged answers, those of each degree, and in percent how many of them are called a conflict."""
    degrees = part["by_coverage"]
    shares = [percent(degrees[name]["accuracy"]) for name in ("complete", "partial", "none", "covered")]
    return [part["n"], *(degrees[name]["n"] for name in ("complete", "partial", "none")), *shares]


def pairwise(runs: Sequence[Run]) -> Section:
    """Runs of `synuc eval pairwise` (paper, Figures 4, 12 and 13)."""
    bars: dict[str, dict[str, float]] = {}
    rows: list[Row] = []
    order: list[Row] = []
    people: list[Row] = []
    for run in runs:
        data = run.metrics
        inconsistent = percent(data["inconsistent"]["share"]) if data["inconsistent"] else None
        failed = (counted(data["failed"]), counted(data["judge_failed"]))
        order.append(Row((run.name, inconsistent, percent(data["position"]["share"]), *failed)))
        for name, part in {"Overall": data["overall"], **data["subsets"]}.items():
            if part["n"]:
                bars[f"{run.name}, {name}"] = {verdict: part[verdict] for verdict in VERDICTS}
            rows.append(Row((run.name, run.judged, name, part["n"], *_verdicts(part))))
        if data["human"]:
            people += _people(run.name, data["human"])
    columns = ("Subset", "Judged", "Win", "Tie", "Loss")
    orders = ("Run", "Orders disagree", "Won by the first shown", "Failed", "Judge failed")
    caption = "Verdicts on the first run against the second, in percent."
    blocks: list[Block] = [Table(caption, ("Run", "Answers of", *columns), tuple(rows))]
    if bars:
        drawing = stacked("implicit conflicts, %", bars, VERDICTS)
        blocks.append(Figures((Figure("pairwise", "Wins, ties and losses of the first run.", drawing),)))
    blocks.append(Table("What the order of the two answers does, in percent; failures.", orders, tuple(order)))
    if people:
        spans = (("", 6), ("The two evaluators", 4), ("The judge and people", 4))
        agreed = ("Raw", "95% interval", "κ", "95% interval") * 2
        caption = (
            "People's final verdicts, and the agreement of the evaluators and of the judge with people (as Figures 12 "
            "and 13 of the paper): in percent but κ; 95% bootstrap intervals over items."
        )
        blocks.append(Table(caption, ("Run", *columns, *agreed), tuple(people), spans))
    blocks += [quoted(published("synuc_figure4")), quoted(published("synuc_agreement"), folded=True)]
    note = "Which of two runs names the constraints that clash better, measured by the gold rationale (Appendix D)."
    return Section("pairwise", "Pairwise attribution", note, tuple(blocks))


def _people(run: str, human: Mapping[str, Any]) -> list[Row]:
    rows = []
    for name, part in {"Overall": human["overall"], **human["subsets"]}.items():
        agreed: list[Value] = []
        for pair in ("evaluators", "judge"):
            figures = part[pair] or {"raw": None, "kappa": None, "intervals": {"raw": None, "kappa": None}}
            kappa = figures["intervals"]["kappa"]
            agreed += [percent(figures["raw"]), bounds(figures["intervals"]["raw"]), figures["kappa"]]
            agreed.append(kappa and f"{kappa[0]:.2f} to {kappa[1]:.2f}")
        rows.append(Row((run, name, part["verdicts"]["n"], *_verdicts(part["verdicts"]), *agreed)))
    return rows


def _verdicts(part: Mapping[str, Any]) -> list[Value]:
    return [percent(part["shares"][verdict]) if part["shares"] else None for verdict in VERDICTS]
