"""The commands `synuc eval ...`. Each imports its job only when it runs."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from synuc.problem import Problem

if TYPE_CHECKING:
    from eval.jobs import Job

app = typer.Typer(no_args_is_help=True, help="Evaluate detectors and chat models, and report on it.")

Configs = Annotated[list[Path], typer.Option("--config", help="YAML file with settings; give it again for more.")]
Overrides = Annotated[list[str], typer.Option("--set", help="One setting, e.g. max_tokens=4096.")]
Run = Annotated[
    Path | None,
    typer.Option("--run", help="Folder of the evaluation, continued if it exists; else runs/ and what is evaluated."),
]
RunOfJudge = Annotated[Path | None, typer.Option("--run", help="Folder of the evaluation; else inside the run judged.")]
Model = Annotated[
    str, typer.Option("--model", help="Folder, hub name or `embedded` for vLLM; MODEL@URL; or a YAML file's engine.")
]
Judge = Annotated[str, typer.Option("--judge", help="A strong model, named as --model is.")]
Adapter = Annotated[Path | None, typer.Option("--adapter", help="Folder of a LoRA adapter on top of the model.")]
Bench = Annotated[list[str], typer.Option("--bench", help="Items: file, folder or glob; give it again for more.")]
Retention = Annotated[str | None, typer.Option(help="Assistant turns in the history: full, partial or omit.")]


def _one_of(option: str, value: str, *choices: str) -> str:
    if value not in choices:
        raise Problem(f"{option} {value}: choose one of {', '.join(choices)}")
    return value


def _folder(run: Path | None, *named: str | Path | None) -> Path:
    """The folder that was given, or else one in runs/ that is named after what is evaluated."""
    if run is not None:
        return run
    # Of a path its end, where that says something, of an endpoint the model.
    paths = [Path(str(name).partition("@")[0]) for name in named if name]
    ends = [path.parent.name if path.name == "adapter" else path.name.removesuffix(".yaml") for path in paths]
    return Path("runs") / re.sub(r"[^\w.-]+", "-", "-".join(ends))


def _job(run: Path, configs: list[Path], overrides: list[str]) -> Job:
    from rich.console import Console

    from eval.config import load_settings
    from eval.jobs import Job

    return Job(["synuc", *sys.argv[1:]], load_settings(configs, overrides), run, Console())


@app.command()
def uc(
    model: Model,
    bench: Bench,
    run: Run = None,
    adapter: Adapter = None,
    retention: Retention = None,
    prompt: Annotated[
        str, typer.Option(help="trained, zero_shot, or auto: trained with an adapter, else zero_shot.")
    ] = "auto",
    mode: Annotated[str, typer.Option(help="reasoned, or label: the label at once, with probabilities.")] = "reasoned",
    configs: Configs = [],
    overrides: Overrides = [],
) -> None:
    """The classification protocol: normal dialogue, explicit revision or implicit conflict."""
    from eval import jobs

    _one_of("--prompt", prompt, "auto", "trained", "zero_shot")
    _one_of("--mode", mode, "reasoned", "label")
    folder = _folder(run, "uc" if mode == "reasoned" else "uc-label", model, adapter)
    job = _job(folder, configs, [*overrides, *([f"retention={retention}"] if retention else [])])
    jobs.uc(job, model, adapter, bench, prompt, mode)  # type: ignore[arg-type]


@app.command()
def response(
    model: Model, judge: Judge, bench: Bench, run: Run = None, configs: Configs = [], overrides: Overrides = []
) -> None:
    """The response protocol: does a model that only answers notice implicit conflicts?"""
    from eval import jobs

    jobs.response(_job(_folder(run, "response", model), configs, overrides), model, judge, bench)


@app.command()
def rationale(
    of: Annotated[Path, typer.Argument(help="Finished run of `synuc eval uc`.")],
    judge: Judge,
    run: RunOfJudge = None,
    configs: Configs = [],
    overrides: Overrides = [],
) -> None:
    """Does the reasoning cover the gold rationale?"""
    from eval import jobs

    jobs.rationale(_job(run or of / "rationale", configs, overrides), of, judge)


@app.command()
def pairwise(
    first: Annotated[Path, typer.Argument(help="Finished run of `synuc eval uc`, whose wins are counted.")],
    second: Annotated[Path, typer.Argument(help="Another one over the same items.")],
    judge: Judge,
    run: RunOfJudge = None,
    orders: Annotated[str, typer.Option(help="both, or random: one at random, as in the paper.")] = "both",
    human: Annotated[Path | None, typer.Option(help="CSV with people's verdicts: id, rater, verdict.")] = None,
    configs: Configs = [],
    overrides: Overrides = [],
) -> None:
    """Whose reasoning is closer to the gold rationale?"""
    from eval import jobs

    _one_of("--orders", orders, "both", "random")
    folder = run or first / f"pairwise-{second.resolve().name}"
    jobs.pairwise(_job(folder, configs, overrides), first, second, judge, orders, human)


@app.command()
def states(
    runs: Annotated[list[Path], typer.Argument(help="Finished runs of `synuc eval uc` in mode reasoned.")] = [],
    model: Annotated[str | None, typer.Option("--model", help="Instead of runs: the model to ask first.")] = None,
    bench: Annotated[list[str], typer.Option("--bench", help="Instead of runs: the items to ask about.")] = [],
    adapter: Adapter = None,
    run: Run = None,
    configs: Configs = [],
    overrides: Overrides = [],
) -> None:
    """The hidden states before the label, and how well they separate the gold labels.

    Of finished runs, or of a new one: give --model and --bench.
    """
    from eval import jobs

    def load(model: str, adapter: str | None) -> tuple[Any, Any]:
        from training.answers import detector
        from training.config import Backbone

        backbone = Backbone(model=model, template={"enable_thinking": False})
        return detector(backbone, Path(adapter) if adapter else None)

    if runs and not (model or bench or adapter or run):
        jobs.states(_job(runs[0], configs, overrides), runs, load)
    elif model and bench and not runs:
        jobs.states_of(_job(_folder(run, "states", model, adapter), configs, overrides), model, adapter, bench, load)
    else:
        raise Problem("give finished runs of `synuc eval uc`, or --model and --bench for a new one")


@app.command()
def verifier(
    engine: Annotated[str, typer.Option("--engine", help="The model to try, named as --model is.")],
    bench: Bench,
    run: Run = None,
    configs: Configs = [],
    overrides: Overrides = [],
) -> None:
    """How good a model would be as the method's verifier, and which tau the data suggest."""
    from eval import jobs

    jobs.verifier(_job(_folder(run, "verifier", engine), configs, overrides), engine, bench)


@app.command()
def coninstruct(
    model: Model,
    data: Annotated[Path, typer.Option("--data", help="Cases (JSONL); `coninstruct-build` makes such a file.")],
    run: Run = None,
    task: Annotated[str, typer.Option(help="detect, resolve or priority.")] = "detect",
    judge: Annotated[str | None, typer.Option("--judge", help="A strong model; for resolve and priority.")] = None,
    guided: Annotated[bool, typer.Option("--guided", help="resolve: with the prompt that asks to clarify.")] = False,
    configs: Configs = [],
    overrides: Overrides = [],
) -> None:
    """ConInstruct: conflicts inside one instruction."""
    from eval import jobs

    _one_of("--task", task, "detect", "resolve", "priority")
    name = f"coninstruct-{task}-guided" if guided else f"coninstruct-{task}"
    jobs.coninstruct(_job(_folder(run, name, model), configs, overrides), model, judge, data, task, guided)


@app.command("coninstruct-build")
def coninstruct_build(
    model: Model,
    judge: Judge,
    seeds: Annotated[Path, typer.Option("--seeds", help="Seed instructions (JSONL): id, task, domain, seed.")],
    out: Annotated[Path, typer.Option("--out", help="The file of cases to write.")],
    run: Run = None,
    configs: Configs = [],
    overrides: Overrides = [],
) -> None:
    """Make ConInstruct cases: constraints of six kinds, conflicts of nine, each checked."""
    from eval import jobs

    jobs.coninstruct_build(_job(_folder(run, "coninstruct-build", model), configs, overrides), model, judge, seeds, out)


@app.command()
def conflictprobe(
    model: Annotated[str | None, typer.Option("--model", help="As in the other commands.")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Folder of scenarios, as ConflictProbe has it.")] = None,
    judge: Annotated[str | None, typer.Option("--judge", help="A strong model.")] = None,
    run: Run = None,
    reasoning: Annotated[str, typer.Option(help="keep or drop the model's thoughts in its earlier replies.")] = "drop",
    history: Annotated[str, typer.Option(help="ori: all of it; indep: finished pairs are taken out.")] = "ori",
    summarise: Annotated[
        Path | None, typer.Option("--summarise", help="Only print the tables of such a results.csv.")
    ] = None,
    configs: Configs = [],
    overrides: Overrides = [],
) -> None:
    """ConflictProbe: does a model speak up when a user contradicts an earlier fact?"""
    from eval import jobs

    _one_of("--reasoning", reasoning, "keep", "drop")
    _one_of("--history", history, "ori", "indep")
    if summarise:
        typer.echo(jobs.conflictprobe_tables(summarise))
        return
    if model is None or data is None or judge is None:
        raise Problem("give --model, --data and --judge, or --summarise RESULTS.csv")
    folder = _folder(run, "conflictprobe", model, reasoning, history)
    jobs.conflictprobe(_job(folder, configs, overrides), model, judge, data, reasoning, history)


@app.command("conflictprobe-generate")
def conflictprobe_generate(
    model: Model,
    out: Annotated[Path, typer.Option("--out", help="The folder of scenarios to write.")],
    run: Run = None,
    count: Annotated[int, typer.Option(min=1, help="Scenarios of each language, English and Chinese.")] = 16,
    configs: Configs = [],
    overrides: Overrides = [],
) -> None:
    """Make ConflictProbe scenarios with new personas and facts."""
    from eval import jobs

    jobs.conflictprobe_generate(
        _job(_folder(run, "conflictprobe-generate", model), configs, overrides), model, count, out
    )


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Finished evaluations of any kind.")],
    out: Annotated[Path, typer.Option("--out", help="HTML file; a Markdown one is written beside it.")] = Path(
        "report.html"
    ),
) -> None:
    """One page with tables, plots, the published figures and the worst errors."""
    from eval.folder import EvalFolder
    from eval.report.html import build

    build([EvalFolder.existing(path) for path in runs], out)
    typer.echo(f"{shlex.quote(str(out))} is ready.")
