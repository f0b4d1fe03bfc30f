"""The command `synuc`: the door to every job. Each command imports its job only when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from synuc import cli_bench, cli_eval, cli_experiment, cli_review
from synuc.problem import Problem

# The jobs live beside this package in the checkout and are imported by plain name.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Find user-side implicit conflicts in chats: synthesise training data and work with it.",
)
seeds_app = typer.Typer(no_args_is_help=True, help="Look at seed dialogues.")
app.add_typer(seeds_app, name="seeds")
train_app = typer.Typer(no_args_is_help=True, help="Train a detector on exported samples.")
app.add_typer(train_app, name="train")
adapter_app = typer.Typer(no_args_is_help=True, help="Merge, describe or publish the adapter of a finished run.")
app.add_typer(adapter_app, name="adapter")
app.add_typer(cli_eval.app, name="eval")
app.add_typer(cli_bench.app, name="bench")
app.add_typer(cli_review.app, name="review")
app.add_typer(cli_experiment.app, name="experiment")

INTERRUPTED = 130
BUDGET_REACHED = 3
PAIRS_FOUND = 3

Configs = Annotated[list[Path], typer.Option("--config", help="YAML file; give it again to lay one over another.")]
Overrides = Annotated[list[str], typer.Option("--set", help="One value over the files, e.g. engine.model=my/model.")]
Run = Annotated[Path, typer.Argument(help="Run folder.")]
SynthesisRun = Annotated[str, typer.Argument(help="Folder or URL of a synthesis run.")]
Judged = Annotated[
    list[Path],
    typer.Option("--difficulty", help="Run of synuc eval uc on RUN/export/uc-bench.jsonl; give two or more."),
]


@seeds_app.command("stats")
def seeds_stats(
    paths: Annotated[list[str], typer.Argument(help="Files, folders, globs, hf:NAME, or sharegpt-sample.")],
    configs: Configs = [],
    overrides: Overrides = [],
    format: Annotated[str, typer.Option(help="auto, wildchat, lmsys, sharegpt or messages.")] = "auto",
) -> None:
    """What is in there, what would be refused and why."""
    from rich.console import Console

    from pipelines.seeds import SeedStats, print_stats, read_seeds
    from synuc.config import load_seeds

    seeds = load_seeds(configs, [*overrides, f"seeds.format={format}"])
    stats = SeedStats()
    for item in read_seeds(seeds.model_copy(update={"paths": tuple(paths)})):
        stats.add(item)
    print_stats(stats, Console())


@app.command()
def synthesize(
    run: Annotated[
        str, typer.Option("--run", help="Folder of the run, or its URL (s3://..., gs://...); continued if it exists.")
    ],
    configs: Configs = [],
    overrides: Overrides = [],
    seeds: Annotated[list[str], typer.Option("--seeds", help="Seed files, instead of the config's.")] = [],
    memory_from: Annotated[
        list[str],
        typer.Option(
            "--memory-from",
            help="A spot check's folder or export; again for more. REVIEW=RUN names the run it was about anew.",
        ),
    ] = [],
    budget_usd: Annotated[
        float | None, typer.Option("--budget-usd", help="Stop when the run has cost so much, by the engines' prices.")
    ] = None,
    budget_tokens: Annotated[
        int | None, typer.Option("--budget-tokens", help="Stop when the run has used so many tokens.")
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Only say what it would use, cost and take, by a sample that is made.")
    ] = False,
    estimate_seeds: Annotated[int, typer.Option("--estimate-seeds", min=2, help="Dialogues of that sample.")] = 20,
) -> None:
    """Synthesise labelled follow-ups for seed dialogues. Exit code 3: the budget is reached, and dialogues are left."""
    import json

    from rich.console import Console

    from pipelines.budget import BudgetReached
    from pipelines.synthesize import synthesize as job
    from synuc.config import load

    seed_paths = [f"seeds.paths=[{', '.join(map(repr, seeds))}]"] if seeds else []
    budget = [f"budget.usd={budget_usd}"] if budget_usd is not None else []
    budget += [f"budget.tokens={budget_tokens}"] if budget_tokens is not None else []
    pairs = [given.rpartition("=")[::2] if "=" in given else (given, None) for given in memory_from]
    if not all(review and reviewed != "" for review, reviewed in pairs):
        raise Problem(
            "--memory-from: write it as REVIEW, a spot check's folder or export, or as REVIEW=RUN with the run that it "
            "was about"
        )
    reviews = [{"review": review, "run": reviewed} for review, reviewed in pairs]
    memory = [f"memory_from={json.dumps(reviews)}"] if reviews else []
    config = load(configs, [*overrides, *seed_paths, *memory, *budget])
    if not config.seeds.paths:
        raise Problem(
            "no seeds: give --seeds PATH or set seeds.paths; --seeds sharegpt-sample takes the packaged dialogues"
        )
    if estimate:
        from pipelines.trial import try_out

        try_out(config, run, estimate_seeds, Console())
        return
    try:
        job(config, run, Console())
    except BudgetReached as reached:
        typer.secho(f"synuc: {reached}", err=True)
        raise typer.Exit(BUDGET_REACHED) from None


@app.command()
def export(
    run: SynthesisRun,
    retention: Annotated[str, typer.Option(help="Assistant turns in the history: full, partial or omit.")] = "partial",
    trainers: Annotated[
        list[str], typer.Option("--for", help="Also as ms-swift or llama-factory reads it; give it again for both.")
    ] = [],
    balance: Annotated[
        str, typer.Option(help="Leave samples out until these are even, the first exactly: label,relation,language.")
    ] = "",
    stratify: Annotated[str, typer.Option(help="Leave them out in proportion to these, e.g. difficulty.")] = "",
    judged: Judged = [],
) -> None:
    """Write UC-Data-SFT and UC-Data-GRPO (JSONL and Parquet), a benchmark and a dataset card to RUN/export."""
    from pipelines.export import export as job
    from pipelines.interchange import Trainer, bundle
    from pipelines.quality.choice import Selection
    from pipelines.quality.difficulty import difficulties
    from pipelines.run_folder import RunFolder
    from synuc.formatting import Retention

    if retention not in list(Retention):
        raise Problem(f"--retention {retention}: choose one of {', '.join(Retention)}")
    for name in trainers:
        if name not in list(Trainer):
            raise Problem(f"--for {name}: choose one of {', '.join(Trainer)}")
    folder = RunFolder.existing(run)
    even, in_proportion = (
        tuple(key.strip() for key in given.split(",")) if given else () for given in (balance, stratify)
    )
    selection = Selection(even, in_proportion, difficulties(judged) if judged else {})
    for line in job(folder, Retention(retention), selection):
        typer.echo(line)
    for line in bundle(folder, {Trainer(name) for name in trainers}):
        typer.echo(line)
    if folder.mirror:
        folder.mirror.put_folder("export")
        typer.echo(f"All of it is in export/ at {folder}, too.")


@app.command()
def report(
    run: Annotated[str, typer.Argument(help="Folder or URL of a synthesis run; with --quality also an export of one.")],
    tokenizer: Annotated[str, typer.Option(help="Folder or hub name; none: that of the run's model.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    quality: Annotated[
        bool, typer.Option("--quality", help="Also balance, diversity, give-aways, difficulty.")
    ] = False,
    judged: Judged = [],
) -> None:
    """Counts per label, outcome, stage, language and schema; token statistics; usage; time; quality if asked for."""
    from rich.console import Console

    from pipelines.quality.rows import exported
    from pipelines.report import figures, print_report
    from pipelines.run_folder import RunFolder

    asked = quality or bool(judged)
    source = (exported(run) if asked else None) or RunFolder.existing(run)
    data = {} if isinstance(source, Path) else figures(source, tokenizer)
    if asked:
        from pipelines.quality.difficulty import difficulties

        try:
            from pipelines.quality.figures import quality as quality_of
        except ModuleNotFoundError as missing:
            raise Problem(f"--quality needs the package {missing.name}: pip install 'synuc[eval]'") from None
        data["quality"] = quality_of(source, difficulties(judged) if judged else None)
    if json:
        import json as json_module

        typer.echo(json_module.dumps(data, indent=2, ensure_ascii=False))
    elif isinstance(source, Path):
        from pipelines.quality.printing import print_quality

        print_quality(data["quality"], Console())
    else:
        print_report(data, Console())


@app.command()
def contamination(
    train: Annotated[str, typer.Argument(help="A run, an export, or chat logs as --seeds takes them.")],
    bench: Annotated[list[str], typer.Option("--bench", help="Benchmark file or folder; give it again for more.")],
    out: Annotated[Path, typer.Option(help="File for the pairs, JSON lines.")] = Path("contamination.jsonl"),
) -> None:
    """Find dialogues of benchmarks in training data, exact and near-duplicate. Exit code 3: there are some."""
    from rich.console import Console

    from pipelines.mirror import fetched
    from pipelines.quality.contamination import contamination as job
    from pipelines.quality.contamination import lines

    facts = job(fetched(train), bench, out, Console())
    for line in lines(facts, out):
        typer.echo(line)
    if facts["exact"] or facts["near"]:
        raise typer.Exit(PAIRS_FOUND)


@app.command()
def show(
    run: SynthesisRun,
    sample_id: Annotated[str, typer.Argument(help="A sample's id, or its beginning; none: the first accepted.")] = "",
    full: Annotated[bool, typer.Option("--full", help="Long turns in full.")] = False,
) -> None:
    """Show one sample as a person wants to read it."""
    from rich.console import Console

    from pipelines.run_folder import RunFolder
    from pipelines.show import show as job

    job(RunFolder.existing(run), sample_id, full, Console())


@app.command()
def doctor() -> None:
    """What this machine has, what is missing, which config fits."""
    from rich.console import Console

    from actors.doctor import doctor as job

    if not job(Console()):
        raise typer.Exit(1)


TrainRun = Annotated[Path, typer.Option("--run", help="Folder of the run; an existing one is continued.")]
ExportedData = Annotated[str, typer.Option("--data", help="Export folder of a synthesis run, or its URL.")]


@train_app.command("sft")
def train_sft(
    run: TrainRun,
    data: ExportedData,
    configs: Configs = [],
    backbone: Annotated[Path | None, typer.Option("--backbone", help="YAML file that names the backbone.")] = None,
    overrides: Overrides = [],
) -> None:
    """LoRA SFT on UC-Data-SFT."""
    from rich.console import Console

    from pipelines.mirror import fetched
    from synuc.layers import compose
    from training.config import SftConfig
    from training.driver import train_sft as job

    files = [*configs, *([backbone] if backbone else [])]
    job(compose(SftConfig, files, [*overrides, f"data.path={fetched(data)!r}"]), run, Console())


@train_app.command("grpo")
def train_grpo(
    run: TrainRun,
    data: ExportedData,
    start: Annotated[Path, typer.Option("--from", help="Finished SFT run whose adapter is trained on.")],
    configs: Configs = [],
    overrides: Overrides = [],
) -> None:
    """DR-GRPO with the constraint-attribution reward on UC-Data-GRPO."""
    from rich.console import Console

    from pipelines.mirror import fetched
    from synuc.layers import compose
    from training.config import GrpoConfig
    from training.driver import train_grpo as job

    places = [f"data.path={fetched(data)!r}", f"start={str(start)!r}"]
    job(compose(GrpoConfig, configs, [*overrides, *places]), run, Console())


@adapter_app.command("merge")
def adapter_merge(
    run: Run,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to make; none: RUN/merged.")] = None,
) -> None:
    """Write backbone and adapter as one plain Hugging Face folder."""
    from training.adapter import merge_run

    typer.echo(f"{merge_run(run, out)} is ready.")


@adapter_app.command("card")
def adapter_card(run: Run) -> None:
    """Write the adapter's model card anew, and print it."""
    from training.adapter import write_card

    typer.echo(write_card(run))


@adapter_app.command("push")
def adapter_push(
    run: Run,
    repo: Annotated[str, typer.Argument(help="Repository of the Hugging Face hub, e.g. you/detector.")],
    public: Annotated[bool, typer.Option("--public", help="For everyone to see; else it is private.")] = False,
) -> None:
    """Upload the adapter to the Hugging Face hub. The token is that of HF_TOKEN or of a login."""
    from training.adapter import push

    typer.echo(f"{push(run, repo, public)} has the adapter.")


@app.command()
def sweep(
    configs: Configs = [],
    overrides: Overrides = [],
    run: Annotated[
        Path | None, typer.Option("--run", help="Folder of the sweep, instead of the config's; continued if it exists.")
    ] = None,
) -> None:
    """Train and test backbones on data sets with several seeds; ends with a table."""
    from rich.console import Console

    from synuc.layers import compose
    from training.config import SweepConfig
    from training.sweep import sweep as job

    job(compose(SweepConfig, configs, overrides), run, Console())


@app.command()
def serve(
    configs: Configs = [],
    overrides: Overrides = [],
    adapters: Annotated[
        list[str], typer.Option("--adapter", help="NAME=FOLDER of a LoRA adapter; a single one is the default.")
    ] = [],
) -> None:
    """Serve the detector, a guard in front of a chat model, and a page to try them."""
    from rich.console import Console

    from serving.app import run as job
    from serving.config import ServeConfig
    from synuc.layers import compose

    named = dict(adapter.partition("=")[::2] for adapter in adapters)
    if len(named) < len(adapters) or not all(name and folder for name, folder in named.items()):
        raise Problem("--adapter: write it as NAME=FOLDER, with another name for each")
    detector = {"adapters": named, **({"default": next(iter(named))} if len(named) == 1 else {})}
    over = {"--adapter": {"detector": detector}} if named else {}
    job(compose(ServeConfig, configs, overrides, over=over), Console())


def main() -> None:
    """Run the command; a problem that has a remedy ends with one message and exit code 1, Ctrl-C with 130."""
    try:
        # Not standalone, Typer returns the exit code of typer.Exit, and 130 for Ctrl-C.
        code = app(standalone_mode=False)
    except TyperException as wrong_arguments:
        typer.secho(f"synuc: {wrong_arguments.format_message()} Try --help.", err=True, fg="red")
        sys.exit(wrong_arguments.exit_code)
    except Problem as problem:
        typer.secho(f"synuc: {problem}", err=True, fg="red")
        sys.exit(1)
    if code == INTERRUPTED:
        typer.secho("synuc: interrupted; what was finished is kept, the same command goes on from there", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
