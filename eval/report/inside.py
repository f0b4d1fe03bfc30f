"""What a model holds and decides inside, in a report: decision states, and its worth as the method's verifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eval.report.blocks import Block, Figure, Figures, Row, Section, Table, Value, bounds, counted, percent
from eval.report.plots import LABELS, Point, Series, cloud, histogram, roc
from eval.report.published import published
from eval.report.runs import Run
from synuc.types import Label


def states(runs: Sequence[Run]) -> Section:
    """Runs whose decision states `synuc eval states` has drawn: pictures and silhouettes (paper, Figure 7)."""
    rows, figures = [], []
    for at, run in enumerate(runs, 1):
        data = run.metrics["states"]
        projection = (data["projection"] or "none").upper()
        rows.append(Row((run.name, run.model, data["n"], counted(data["excluded"]), data["silhouette"], projection)))
        if data["points"]:
            series = [
                Series(label.value, LABELS[label], _points(data["points"], label))
                for label in Label
                if any(point["label"] == label for point in data["points"])
            ]
            drawing = cloud(f"Decision states of {run.name}", series)
            silhouette = "undefined" if data["silhouette"] is None else f"{data['silhouette']:.3f}"
            caption = f"{run.name}, {run.model}: {projection}, silhouette {silhouette}."
            figures.append(Figure(f"states-{at}", caption, drawing))
    table = published("synuc_figure7")
    rows.append(Row((f"Paper, {table.table}",), quoted=True, heading=True))
    rows += [Row((stage, "Qwen3.5-4B", 300, None, value, "UMAP"), quoted=True) for stage, value in table.rows]
    columns = ("Run", "Model", "States", "Excluded", "Silhouette", "Projection")
    caption = "Silhouette of the gold labels in the full space, -1 to 1."
    note = "What a model holds right before it writes its label, after its reasoning (section 7.6)."
    pictures = (Figures(tuple(figures)),) if figures else ()
    return Section("states", "Decision states", note, (*pictures, Table(caption, columns, tuple(rows), digits=3)))


def _points(points: Sequence[Mapping[str, Any]], label: Label) -> tuple[Point, ...]:
    return tuple(Point(point["id"], point["x"], point["y"]) for point in points if point["label"] == label)


def verifier(runs: Sequence[Run]) -> Section:
    """Runs of `synuc eval verifier`: what is accepted, and the thresholds that would be better."""
    rows, curves = [], {}
    for run in runs:
        rows.append(_thresholds(run))
        if points := run.metrics["roc"] and run.metrics["roc"]["points"]:
            curves[run.name] = [(0.0, 0.0), *((point["fpr"], point["tpr"]) for point in points), (1.0, 1.0)]
    columns = ("Run", "Verifier", "Items", "τ", "AUC", "Best τ", "Its TPR", "Its FPR", "Precise τ")
    counts = ("Calls per item", "Failed items", "Failed offers")
    caption = "Best τ: with the largest TPR - FPR; precise τ: the least with a precision of 95%. Rates in percent."
    blocks: list[Block] = [Table(caption, columns + counts, tuple(rows)), _acceptance(runs), _stages(runs)]
    figures = [_confidences(run, at) for at, run in enumerate(runs, 1)]
    if curves:
        caption = "Right offers accepted against wrong offers accepted, as τ falls; a stage's rejection is final."
        figures.insert(0, Figure("verifier-roc", caption, roc("ROC of verifiers", curves)))
    blocks.insert(1, Figures(tuple(figures)))
    note = "Every gold item is offered to the verifier with every label; it should accept its own only."
    return Section("verifier", "Verifier", note, tuple(blocks))


def _thresholds(run: Run) -> Row:
    data = run.metrics
    curve = data["roc"] or {"auc": None, "youden": None, "precise_tau": None}
    best = curve["youden"] or {"tau": None, "tpr": None, "fpr": None}
    auc = percent(curve["auc"])
    rates = (best["tau"], percent(best["tpr"]), percent(best["fpr"]), curve["precise_tau"])
    ends = (data["calls"]["per_item"], counted(data["failed"]), counted(data["failed_offers"]))
    return Row((run.name, run.model, data["items"], data["tau"], auc, *rates, *ends))


def _confidences(run: Run, at: int) -> Figure:
    data = run.metrics["confidence"]
    counts = {"right offers": data["right"], "wrong offers": data["wrong"]}
    drawing = histogram(f"Confidence of {run.name}", "confidence q", data["edges"], counts, run.metrics["tau"])
    caption = f"{run.name}: confidence in the offers that passed both stages; dashed: τ = {run.metrics['tau']}."
    return Figure(f"verifier-confidence-{at}", caption, drawing)


def _acceptance(runs: Sequence[Run]) -> Table:
    rows = []
    for run in runs:
        for gold, cells in run.metrics["acceptance"].items():
            values: list[Value] = []
            for cell in cells.values():
                values += [cell["accepted"], cell["n"], percent(cell["rate"]), bounds(cell["interval"])]
            rows.append(Row((run.name, gold, *values)))
    spans = (("", 2), *((f"offered as {label.value}", 4) for label in Label))
    columns = ("Run", "Gold", *(name for _ in Label for name in ("Accepted", "Offers", "%", "95% interval")))
    return Table("Acceptance of each gold label under each offered one.", columns, tuple(rows), spans)


def _stages(runs: Sequence[Run]) -> Table:
    names = {"right": "right label", "wrong": "wrong label"}
    stages = {"accepted": "Accepted", "anchor": "Anchor stage", "global": "Global stage", "confidence": "Confidence"}
    rows = [
        Row((run.name, name, *(run.metrics["stages"][side][stage] for stage in stages)))
        for run in runs
        for side, name in names.items()
    ]
    return Table(
        "Offers accepted, and where the others were rejected.", ("Run", "Offers", *stages.values()), tuple(rows)
    )
