"""ConInstruct and ConflictProbe in a report: their papers' tables with our rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eval.coninstruct.data import CONFLICT_KINDS
from eval.coninstruct.priority import KINDS, OUTCOMES, POSITIONS
from eval.report.blocks import Row, Section, Table, Value, counted, percent, quoted
from eval.report.published import published
from eval.report.runs import Run

SHOWN = {
    "unacknowledged": "Unacknowledged",
    "clarification": "Asks for clarification",
    "resolved": "Resolves by itself",
    "other": "Other",
    "failed": "Failed",
    "acknowledged": "Acknowledged",
}
PROBED = {"present": "Present", "named": "Named", "present_and_named": "Present and named", "recall": "Recall present"}


def detect(runs: Sequence[Run]) -> Section:
    """Runs of `synuc eval coninstruct --task detect` (ConInstruct, Table 2 and Figure 3)."""
    rows = []
    for run in runs:
        data = run.metrics
        f1 = [percent(data["subsets"][kind]["f1"]) for kind in CONFLICT_KINDS]
        means = [percent(data[name]) for name in ("average", "intra", "inter")]
        rows.append(Row((run.name, run.model, *f1, *means, counted(data["failures"]))))
    columns = ("Run", "Model", *CONFLICT_KINDS, "Average", "Within", "Between", "Failed")
    best = frozenset(range(2, len(columns) - 1))
    caption = (
        "F1 on instructions with one conflict, by its kind, in percent; averages over all, within and between types."
    )
    single = Table(caption, columns, tuple(rows), best=best, digits=1)
    by_count = [
        Row((run.name, f"{count} conflicts", part["conflicts"], *(percent(part[key]) for key in ("recall", "f1"))))
        for run in runs
        for count, part in run.metrics["counts"].items()
    ]
    head = ("Run", "Instructions with", "Number", "Recall", "F1")
    numbers = Table("Detection by number of conflicts, in percent.", head, tuple(by_count), digits=1)
    blocks = (single, quoted(published("coninstruct_detection"), 1), numbers, _coninstructs_text())
    note = "A model says of an instruction whether it holds conflicting constraints. A failure counts as wrong."
    return Section("coninstruct-detect", "ConInstruct: detection", note, blocks)


def resolve(runs: Sequence[Run]) -> Section:
    """Runs of `synuc eval coninstruct --task resolve` (ConInstruct, Figure 4 and Table 3)."""
    rows = []
    for run in runs:
        guided = "yes" if run.metrics["guided"] else "no"
        for name, part in {"none": run.metrics["free"], **run.metrics["groups"]}.items():
            rows.append(Row((run.name, guided, name, part["n"], *(percent(part[key]) for key in SHOWN))))
    columns = ("Run", "Guided", "Conflicts", "Instructions", *SHOWN.values())
    caption = "What models do with an instruction by its number of conflicts, in percent."
    table = Table(caption, columns, tuple(rows), digits=1)
    blocks = (table, _ends(runs), quoted(published("coninstruct_behaviour"), 1), _coninstructs_text())
    note = "A model carries out an instruction with conflicts; a judge says which of four behaviours it shows."
    return Section("coninstruct-resolve", "ConInstruct: resolution", note, blocks)


def _ends(runs: Sequence[Run]) -> Table:
    rows = [Row((run.name, run.metrics["n"], run.metrics["cut"], counted(run.metrics["failures"]))) for run in runs]
    caption = "Answers cut off at their bound, which are judged as they are, and failures by kind."
    return Table(caption, ("Run", "Instructions", "Cut off", "Failures"), tuple(rows))


def _coninstructs_text() -> Table:
    """What the paper says besides its tables, of detection and of resolution."""
    return quoted(published("coninstruct_text"), 1, folded=True)


def priority(runs: Sequence[Run]) -> Section:
    """Runs of `synuc eval coninstruct --task priority` (ConInstruct, Figures 5 and 6)."""
    satisfied, followed = [], []
    for run in runs:
        parts = {**run.metrics["constraints"], "original, without a new one": run.metrics["without_new"]["all"]}
        for name, part in parts.items():
            satisfied.append(Row((run.name, name, part["n"], percent(part["satisfied"]), percent(part["failed"]))))
        for position in POSITIONS:
            for kind in ("all", *KINDS):
                part = run.metrics[position][kind]
                shares = (percent(part[outcome]) for outcome in OUTCOMES)
                followed.append(Row((run.name, position.replace("_", " "), kind, part["n"], *shares)))
    first = ("Run", "Constraint", "Number", "Satisfied", "Failed")
    second = ("Run", "Position", "Conflict", "Number", *(outcome.capitalize() for outcome in OUTCOMES))
    blocks = (
        Table("Constraints satisfied on conflict-free instructions, in percent.", first, tuple(satisfied), digits=1),
        Table("Which of two conflicting constraints is satisfied, in percent.", second, tuple(followed), digits=1),
        _ends(runs),
    )
    note = (
        "Which constraint wins: the original or the new one, placed after or before it. The judge sees both orders of "
        "the two, and has disagreed with itself if it then says otherwise. A failure satisfies nothing."
    )
    return Section("coninstruct-priority", "ConInstruct: priority", note, blocks)


def conflictprobe(runs: Sequence[Run]) -> Section:
    """Runs of `synuc eval conflictprobe`."""
    rows, joint, scenarios = [], [], []
    for run in runs:
        data, overall = run.metrics, run.metrics["overall"]
        setting = (run.name, run.model, run.method["reasoning"], run.method["history"])
        ends = (data["with_thoughts"], counted(data["failures"]), counted(data["judge_failures"]))
        rows.append(Row((*setting, overall["n"], *_probed(overall), *ends)))
        joint.append(Row((run.name, *overall["joint"].values())))
        scenarios += [Row((run.name, name, part["n"], *_probed(part))) for name, part in data["per_scenario"].items()]
    outcomes = tuple(runs[0].metrics["overall"]["joint"])
    published_counts = {f"{earlier}+{named}": n for earlier, named, n in published("conflictprobe_joint").rows}
    joint.append(Row(("Published, all", *(published_counts[outcome] for outcome in outcomes)), quoted=True))
    paper = published("conflictprobe_overall").records()[0]
    figures = [paper[name] for name in PROBED.values()]
    rows.append(Row(("Published, all", "", "", "", paper["n"], *figures, None, None, None), quoted=True))
    ended = ("Replies with thoughts", "Failed scenarios", "Judge failures")
    columns = ("Run", "Model", "Reasoning", "History", "Traps", *PROBED.values(), *ended)
    best = frozenset(range(5, 9))
    counts = Table("Joint outcomes of the replies to traps.", ("Run", *outcomes), tuple(joint))
    head = ("Run", "Scenario", "Traps", *PROBED.values())
    parts = Table("By scenario, in percent.", head, tuple(scenarios), digits=1, folded=True)
    tables = [quoted(published(f"conflictprobe_{name}"), 1) for name in ("models", "conditions")]
    caption = "Whether the reply to a trap brings the earlier value back and names the conflict, in percent."
    blocks = (Table(caption, columns, tuple(rows), best=best, digits=1), counts, parts, *tables)
    note = "Blunt contradictions in long scripts: are they voiced (probe 1), is the earlier value known (probe 2)?"
    return Section("conflictprobe", "ConflictProbe", note, blocks)


def _probed(part: Mapping[str, Any]) -> list[Value]:
    return [percent(part[key]) for key in PROBED]
