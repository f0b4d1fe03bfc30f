"""The commands `synuc review ...`. Each imports its job only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Build a benchmark, or check data, with people in a web app.")

Folder = Annotated[Path, typer.Option("--project", help="Folder of the review project.")]
Db = Annotated[str | None, typer.Option("--db", help="URL of the database, in place of the project's.")]


@app.command()
def create(
    project: Folder,
    froms: Annotated[
        list[str],
        typer.Option(
            "--from", help="candidates.jsonl; an export of UC-Data, or its URL; or twice, finished runs of `eval uc`."
        ),
    ],
    people: Annotated[Path, typer.Option("--people", help="YAML file: people: [{name: ..., roles: [...]}, ...]")],
    kind: Annotated[str, typer.Option(help="benchmark, spot-check or pairwise.")] = "benchmark",
    sample: Annotated[str, typer.Option(help="spot-check: how many of ND, ER and IC.")] = "33/33/34",
    seed: Annotated[int, typer.Option(help="Of the sample and of the order of items.")] = 0,
    name: Annotated[str, typer.Option(help="Name in the database; none: the folder's.")] = "",
    db: Annotated[str | None, typer.Option("--db", help="SQLAlchemy's URL; none: SQLite in the folder.")] = None,
    url: Annotated[str, typer.Option(help="Where people will reach the app.")] = "http://127.0.0.1:8010",
) -> None:
    """Make a project and print everybody's personal link."""
    from rich.console import Console

    from pipelines.mirror import fetched
    from review.jobs import create as job

    job(project, [Path(fetched(place)) for place in froms], kind, people, sample, seed, name, db, url, Console())


@app.command()
def link(
    project: Folder,
    name: Annotated[str, typer.Argument(help="A person's name.")],
    roles: Annotated[list[str], typer.Option("--role", help="Adds the person, with this role; again for more.")] = [],
    db: Db = None,
) -> None:
    """Print a new link for a person who lost theirs, or for a new person."""
    from rich.console import Console

    from review.jobs import link as job

    job(project, db, name, roles, Console())


@app.command()
def serve(
    project: Folder,
    db: Db = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Where to listen; none: where the links point if that is here or an IP address, else 127.0.0.1."
        ),
    ] = None,
    port: Annotated[int | None, typer.Option(help="None: the links' port if they point here, else 8010.")] = None,
) -> None:
    """Serve the app until Ctrl-C."""
    from rich.console import Console

    from review.app import serve as job

    job(project, db, host, port, Console())


@app.command()
def agreement(
    project: Folder, db: Db = None, json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False
) -> None:
    """How far the project is and how far people agree, per language."""
    from rich.console import Console

    from review.jobs import agreement as job

    job(project, db, json, Console())


@app.command()
def export(
    project: Folder,
    db: Db = None,
    shape: Annotated[
        str, typer.Option("--as", help="own (UC-Bench, labels, or a CSV of verdicts), label-studio or argilla.")
    ] = "own",
    out: Annotated[Path | None, typer.Option("--out", help="The file to write; none: in the project's folder.")] = None,
    sample: Annotated[
        str | None,
        typer.Option(help="benchmark: how many of ND, ER and IC, e.g. 20/20/60, in all languages alike; none: all."),
    ] = None,
) -> None:
    """Write what was found."""
    from rich.console import Console

    from review.jobs import export as job

    job(project, db, shape, out, sample, Console())


@app.command("import")
def import_labels(
    project: Folder,
    file: Annotated[Path, typer.Argument(help="JSON export of Label Studio.")],
    db: Db = None,
    raters: Annotated[
        list[str], typer.Option("--rater", help="ID=NAME: what Label Studio calls a person; again for more.")
    ] = [],
) -> None:
    """Take labels that people have given in Label Studio."""
    from rich.console import Console

    from review.jobs import import_labels as job

    job(project, db, file, raters, Console())
