"""What each `synuc eval` command does: reads its inputs, makes the evaluation, runs it, and says the main figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from eval.bench import Refused, read_bench
from eval.config import EvalRun, Settings, engine_of
from eval.conflictprobe import generate, probe, summary
from eval.conflictprobe.data import read_scenarios, read_systems
from eval.coninstruct import builder, detect, priority, resolve
from eval.coninstruct.data import read_cases, read_seeds
from eval.driver import evaluate
from eval.folder import EvalFolder
from eval.judging import conflicts
from eval.pairwise import VERDICTS, Pairwise, paired, read_human
from eval.protocol import Evaluation, Item
from eval.rationale import RationaleCoverage, answered
from eval.response import Response
from eval.uc import Classification, Mode, Prompt
from eval.verifier import VerifierQuality
from synuc.config import OpenAIEngine, VllmEngine
from synuc.figures import percent
from synuc.problem import Problem

if TYPE_CHECKING:
    from eval.states import Load

Engines = dict[str, VllmEngine | OpenAIEngine]

SHOWN = 5
"""Refused records that a command names; the run's folder has all."""


@dataclass(frozen=True)
class Job:
    """A command as it was given: its words, settings and folder, and where it may speak."""

    command: Sequence[str]
    settings: Settings
    folder: Path
    console: Console

    def model(self, name: str, adapter: Path | None = None) -> VllmEngine | OpenAIEngine:
        return engine_of(name, self.settings.engine, adapter)

    def judge(self, name: str) -> VllmEngine | OpenAIEngine:
        return engine_of(name, self.settings.judge)

    def run(
        self,
        evaluation: Evaluation,
        items: Sequence[Item],
        engines: Engines,
        judged: Sequence[EvalFolder] = (),
        refused: Sequence[Refused] = (),
    ) -> dict[str, Any]:
        """`judged`: the runs whose answers the items hold; `refused`: what of their files gives none.

        Raises as `eval.driver.evaluate` does, and for no items.
        """
        if not items:
            raise Problem("there is nothing to ask about")
        names = tuple(folder.path.name for folder in judged)
        run = EvalRun(command=tuple(self.command), settings=self.settings, engines=engines, judged=names)
        rows = [vars(record) for record in refused]
        figures = evaluate(evaluation, items, run, self.folder, self.console, rows)
        self.say(f"{self.folder / 'metrics.json'} holds the figures; a report: synuc eval report {self.folder}")
        return figures

    def bench(self, paths: Sequence[str]) -> tuple[list[Item], Sequence[Refused]]:
        """The items of benchmark files, and what was refused, of which it says something. Raises RecordsError."""
        bench = read_bench([Path(path) for path in paths], self.settings.fields)
        for refused in bench.refused[:SHOWN]:
            self.say(f"refused: {refused}")
        if bench.refused:
            whole = len(bench.refused) + len(bench.items)
            self.say(f"{len(bench.refused)} of {whole} records were refused; {self.folder}/refused.jsonl lists them")
        return [item.model_dump(mode="json") for item in bench.items], bench.refused

    def unused(self, *names: str) -> None:
        """Say which of these settings were given, because the protocol has its own."""
        if given := [name for name in names if name in self.settings.model_fields_set]:
            self.say(f"not used, because the protocol sets it: {', '.join(given)}")

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)


def _counted(kinds: Mapping[str, int]) -> str:
    """Kinds and their numbers; empty if there are none."""
    return ", ".join(f"{kind} {n}" for kind, n in kinds.items() if n)


def _failed(figures: Mapping[str, Any]) -> str:
    named = {**figures["failed"], **{f"judge {kind}": n for kind, n in figures["judge_failed"].items()}}
    return f"; failed: {text}" if (text := _counted(named)) else ""


def uc(
    job: Job, model: str, adapter: Path | None, bench: Sequence[str], prompt: Prompt | Literal["auto"], mode: Mode
) -> None:
    """The classification protocol. The prompt `auto` is the trained one for a model with an adapter."""
    settings, engine = job.settings, job.model(model, adapter)
    if prompt == "auto":
        prompt = "trained" if isinstance(engine, VllmEngine) and engine.adapter else "zero_shot"
    evaluation = Classification(settings.retention, prompt, mode, settings.temperature, settings.max_tokens)
    items, refused = job.bench(bench)
    figures = job.run(evaluation, items, {"model": engine}, refused=refused)
    for name, row in {**figures["subsets"], "overall": figures["overall"]}.items():
        shares = "  ".join(f"{key} {percent(row[key], 2)}" for key in ("precision", "recall", "f1", "recall_ic"))
        absent = f"  (no item is {', '.join(row['absent'])}: 0 in the means)" if row["absent"] else ""
        job.say(f"{name:<14} n {row['n']:.0f}  {shares}{absent}")
    if without := _counted(figures["kinds"]):
        job.say(f"without a readable label, and so wrong: {without}")


def response(job: Job, model: str, judge: str, bench: Sequence[str]) -> None:
    """The response protocol, on the implicit conflicts of a benchmark."""
    evaluation = Response(job.settings.temperature, job.settings.max_tokens)
    engines = {"model": job.model(model), "judge": job.judge(judge)}
    items, refused = job.bench(bench)
    figures = job.run(evaluation, conflicts(items), engines, refused=refused)
    overall = figures["overall"]
    job.say(f"conflicts recognised: {percent(overall['accuracy'], 2)} of {overall['n']}{_failed(figures)}")


def rationale(job: Job, of: Path, judge: str) -> None:
    """Whether the reasoning of a finished `uc` run covers the gold rationale."""
    run = EvalFolder.existing(of, "uc")
    job.unused("temperature", "max_tokens")
    figures = job.run(RationaleCoverage(), answered(run), {"judge": job.judge(judge)}, [run])
    parts = ", ".join(f"{name} {part['n']}" for name, part in figures["overall"]["by_coverage"].items())
    job.say(f"rationale coverage: {parts}{_failed(figures)}")


def pairwise(job: Job, first: Path, second: Path, judge: str, orders: Any, human: Path | None) -> None:
    """Whose reasoning is closer to the gold rationale, of two finished `uc` runs over the same items."""
    runs = EvalFolder.existing(first, "uc"), EvalFolder.existing(second, "uc")
    evaluation = Pairwise(orders=orders, human=read_human(human) if human else ())
    job.unused("temperature", "max_tokens")
    figures = job.run(evaluation, paired(*runs), {"judge": job.judge(judge)}, runs)
    verdicts = ", ".join(f"{verdict} {figures['overall'][verdict]}" for verdict in VERDICTS)
    job.say(f"{first} against {second}: {verdicts}{_failed(figures)}")


def states(job: Job, runs: Sequence[Path], load: Load) -> None:
    """The decision states of finished `uc` runs; their figures go into each run's metrics.json as `states`."""
    from eval import states as decision  # loads torch

    for path in runs:
        run = EvalFolder.existing(path, "uc")
        with run.locked():
            made = decision.figures(decision.states(run, load), job.settings.seed)
            run.write_metrics({**run.metrics, "states": made})
        silhouette = "undefined" if made["silhouette"] is None else f"{made['silhouette']:.3f}"
        job.say(f"{path}: {made['n']} states, excluded {made['excluded']}, silhouette {silhouette}")


def states_of(job: Job, model: str, adapter: Path | None, bench: Sequence[str], load: Load) -> None:
    """The decision states of a model on a benchmark: first its `uc` run, in the job's folder, then those of that."""
    if not isinstance(job.model(model, adapter), VllmEngine):
        raise Problem(f"--model {model}: an endpoint shows no hidden states; name a folder or a name of the hub")
    uc(job, model, adapter, bench, "auto", "reasoned")
    states(job, [job.folder], load)


def verifier(job: Job, name: str, bench: Sequence[str]) -> None:
    """A model's quality as the method's verifier."""
    engine = job.model(name)
    job.unused("temperature", "max_tokens")
    items, refused = job.bench(bench)
    figures = job.run(VerifierQuality(), items, {"generator": engine, "verifier": engine}, refused=refused)
    for gold, cells in figures["acceptance"].items():
        rates = ", ".join(f"as {offered} {percent(cell['rate'], 2)} of {cell['n']}" for offered, cell in cells.items())
        job.say(f"{gold} accepted {rates}")


def coninstruct(job: Job, model: str, judge: str | None, data: Path, task: str, guided: bool) -> None:
    """ConInstruct's three tasks."""
    if guided and task != "resolve":
        raise Problem(f"--guided is for --task resolve, not for {task}")
    if judge and task == "detect":
        raise Problem("--judge is for --task resolve and priority: detect needs none, leave it out")
    cases = read_cases(data)
    engines: Engines = {"model": job.model(model)}
    job.unused("temperature", "max_tokens")
    if task == "detect":
        job.run(detect.Detect(), detect.items(cases, job.settings.seed), engines)
        return
    if judge is None:
        raise Problem(f"--task {task} needs a judge: give --judge")
    engines["judge"] = job.judge(judge)
    if task == "resolve":
        job.run(resolve.Resolve(guided), resolve.items(cases, job.settings.seed), engines)
    else:
        job.run(priority.Priority(), priority.items(cases), engines)


def coninstruct_build(job: Job, model: str, judge: str, seeds: Path, out: Path) -> None:
    """New ConInstruct cases from seed instructions."""
    items = [seed.model_dump(mode="json") for seed in read_seeds(seeds)]
    job.unused("temperature", "max_tokens")
    job.run(builder.Builder(), items, {"model": job.model(model), "judge": job.judge(judge)})
    job.say(f"{builder.write_cases(EvalFolder(job.folder).results(), out)} cases in {out}")


def conflictprobe(job: Job, model: str, judge: str, data: Path, reasoning: Any, history: Any) -> None:
    """ConflictProbe's two probes over scripted scenarios."""
    items = read_scenarios(data)
    evaluation = probe.Probe(read_systems(data), reasoning, history, max_tokens=job.settings.max_tokens)
    engine = job.model(model)
    job.unused("temperature")
    figures = job.run(evaluation, items, {"model": engine, "judge": job.judge(judge)})
    rows = probe.rows(items, EvalFolder(job.folder).results(), engine.model, reasoning, history)
    if not rows:
        raise Problem(
            f"none of the {len(items)} scenarios was finished: {_counted(figures['failures'])}; "
            f"{job.folder / 'results.jsonl'} says why"
        )
    probe.write_csv(job.folder / "results.csv", rows)
    if reasoning == "keep" and not figures["with_thoughts"]:
        job.say(
            "no reply came with thoughts, so that there was nothing to keep: these are the figures of --reasoning "
            "drop. An endpoint has to give them, inside its answers (<think>...</think>) or beside them, as "
            "reasoning_content."
        )
    job.say(conflictprobe_tables(job.folder / "results.csv"))


def conflictprobe_tables(results: Path) -> str:
    """ConflictProbe's tables from any such results.csv."""
    return summary.tables(summary.summarise(results))


def conflictprobe_generate(job: Job, model: str, count: int, out: Path) -> None:
    """New ConflictProbe scenarios, `count` of each language."""
    job.unused("temperature", "max_tokens")
    job.run(generate.Generator(job.settings.seed), generate.briefs(count), {"model": job.model(model)})
    job.say(f"{generate.write_scenarios(EvalFolder(job.folder).results(), out)} scenarios in {out}")
