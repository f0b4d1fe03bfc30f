"""The commands `synuc experiment ...`. Each imports its job only when it runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from synuc.problem import Problem

app = typer.Typer(no_args_is_help=True, help="The paper's experiments: each is one file and one command.")

SHIPPED = Path("configs/experiments")
Overrides = Annotated[
    list[str], typer.Option("--set", help="One value over the file and its scale, e.g. 'seeds=[0, 1]'.")
]


@app.command("list")
def list_files(
    folder: Annotated[Path, typer.Argument(help="Folder of experiment files.")] = SHIPPED,
) -> None:
    """The experiments, what each reproduces, how many cells and steps it has at each scale, and what it needs."""
    from rich.console import Console

    from experiments.listing import listed

    Console().print(listed(folder))


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="Experiment file, e.g. configs/experiments/table6-retrieval.yaml.")],
    run: Annotated[
        Path, typer.Option("--run", help="Folder of the run; an existing one is continued, and may hold several.")
    ],
    scale: Annotated[str, typer.Option(help="full, on a cluster with GPUs, or toy, on two cores.")] = "toy",
    overrides: Overrides = [],
) -> None:
    """Synthesise, train and evaluate what an experiment compares; steps that are done already are shared."""
    from rich.console import Console

    from experiments.config import SCALES, load
    from experiments.driver import run as job

    chosen = next((known for known in SCALES if known == scale), None)
    if chosen is None:
        raise Problem(f"--scale {scale}: choose one of {', '.join(SCALES)}")
    job(load(file, chosen, overrides), file.stem, chosen, run, Console())


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="HTML file; a Markdown one is written beside it. None: in the run.")
    ] = None,
) -> None:
    """One page with our figures beside the published ones: means and 95% intervals."""
    from experiments.report import build

    path = out or run / "report.html"
    build(run, path)
    typer.echo(f"{shlex.quote(str(path))} is ready.")
