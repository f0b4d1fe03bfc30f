"""What each `synuc review` command does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from review import export as exporting
from review import figures, projects, sources
from review.config import (
    FILE,
    ReviewConfig,
    ReviewError,
    load_project,
    save_project,
    sqlite_file,
    sqlite_url,
)
from review.content import Entry
from review.database import Database
from review.forms import Kind
from review.labelstudio import import_label_studio
from review.people import check_people, read_people, told
from synuc.types import Label


def create(
    folder: Path,
    froms: Sequence[Path],
    kind: str,
    people: Path,
    sample: str,
    seed: int,
    name: str,
    db: str | None,
    url: str,
    console: Console,
) -> None:
    """Make a project in a folder and say everybody's personal link.

    Raises:
        Problem: naming what can't be used; nothing is left behind then.
    """
    if kind not in list(Kind):
        raise ReviewError(f"--kind {kind}: choose one of {', '.join(Kind)}")
    if (folder / "review.yaml").exists():
        raise ReviewError(f"{folder} holds a review project already; go on with: synuc review serve --project {folder}")
    name = name or folder.resolve().name
    values = {"name": name, "kind": kind, "db": db or sqlite_url(folder / "review.db"), "url": url}
    try:
        config = ReviewConfig.model_validate(values)
    except ValueError as error:
        raise ReviewError(_first(error)) from None
    named = read_people(people)
    check_people(config.kind, named)
    entries, remark = _entries(config, froms, sample, seed)
    if config.kind is Kind.SPOT_CHECK:
        config = config.model_copy(update={"run": sources.run_of(froms[0])})
    about = {"from": [path.name for path in froms]}
    with _whole(folder, config), closing(Database(config.db)) as database, database.writing() as session:
        links = projects.create(session, config, entries, named.people, seed, about)
        save_project(folder, config)  # before the links count: nothing may fail between that and saying them
    _say(console, f"{len(entries)} items of the project {name} wait for their people{remark}. Everybody's own link:")
    for person, link in links.items():
        _say(console, f"  {person}  {link}")
    _say(console, told(config.kind, Counter(role for person in named.people for role in person.roles)))
    _say(
        console,
        f"Only hashes of the links are kept, so note them now. Begin with: synuc review serve --project {folder}",
    )


def link(folder: Path, db: str | None, name: str, roles: Sequence[str], console: Console) -> None:
    """Say a new link for a person; with roles, add one."""
    config = load_project(folder, db)
    try:
        with Database(config.db).writing() as session:
            _say(console, projects.new_link(session, config, name, roles))
    except ValueError as error:
        raise ReviewError(_first(error)) from None


def agreement(folder: Path, db: str | None, as_json: bool, console: Console) -> None:
    """Say how far the project is and how far its people agree, with 95% intervals."""
    config = load_project(folder, db)
    with Database(config.db).reading() as session:
        project = projects.find(session, config).id
        done = figures.progress(session, project)
        roles = figures.roles(session, project)
        found = figures.agreement(session, project, config.kind, intervals=True)
    if as_json:
        console.print_json(json.dumps({"progress": done, "agreement": found}))
        return
    _say(console, f"{done['finished']} of {done['items']} items are finished")
    _say(console, told(config.kind, roles))
    for name, groups in found.items():
        if name == "found":
            _say(console, f"found in place of the synthetic label: {json.dumps(groups)}")
        elif groups is None:
            _say(console, f"{name}: nothing to compare yet")
        else:
            console.print(_table(name, groups))


def export(folder: Path, db: str | None, shape: str, out: Path | None, sample: str | None, console: Console) -> None:
    """Write the project's items, and say how many of them and what was left out."""
    config = load_project(folder, db)
    shares = None if sample is None else sources.read_shares(sample)
    path = out or folder / (exporting.NAMES[config.kind] if shape == "own" else f"{shape}.json")
    database = Database(config.db)
    with database.reading() as session:
        project = projects.find(session, config).id
        exported = exporting.export(session, project, config, shape, path, shares)
    with database.writing() as session:
        projects.note(session, project, "export", {"shape": shape, "rows": exported.rows})
    left_out = ", ".join(f"{reason} {n}" for reason, n in sorted(exported.left_out.items())) or "none"
    _say(console, f"{exported.path} holds {exported.rows} rows; left out: {left_out}")


def import_labels(folder: Path, db: str | None, file: Path, raters: Sequence[str], console: Console) -> None:
    """Take labels from a JSON export of Label Studio, and say what became of each."""
    named = dict(rater.partition("=")[::2] for rater in raters)
    if not all(named.values()):
        raise ReviewError("--rater: write it as ID=NAME, what Label Studio calls a person and what this project does")
    config = load_project(folder, db)
    with Database(config.db).writing() as session:
        project = projects.find(session, config).id
        imported = import_label_studio(session, project, config.kind, file, named)
    for reason, number in sorted(imported.counts.items(), key=lambda pair: -pair[1]):
        _say(console, f"{number:6}  {reason}")


@contextmanager
def _whole(folder: Path, config: ReviewConfig) -> Iterator[None]:
    """The folder, for the block to make a project in. What is new goes again if the block raises.

    Raises:
        ReviewError: the folder can't be made or written to.
    """
    kept = sqlite_file(config.db)
    database = [Path(f"{kept}{end}") for end in ("", "-wal", "-shm")] if kept else []
    new = [path for path in (folder / FILE, *database, folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        for path in new:
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        if isinstance(error, OSError):
            raise ReviewError(f"can't make a project in {folder} ({error.strerror}); name another --project") from None
        raise


def _entries(config: ReviewConfig, froms: Sequence[Path], sample: str, seed: int) -> tuple[tuple[Entry, ...], str]:
    """The items to make, and what is to be said about what isn't among them."""
    wanted = 2 if config.kind is Kind.PAIRWISE else 1
    if len(froms) != wanted:
        what = "two finished runs of `synuc eval uc`, the one whose wins count first" if wanted == 2 else "one file"
        raise ReviewError(f"a project of kind {config.kind} is made from {what}: give --from {wanted} times")
    match config.kind:
        case Kind.BENCHMARK:
            return sources.candidates(froms[0], config.name), ""
        case Kind.SPOT_CHECK:
            everything = sources.samples(froms[0])
            drawn = sources.stratified(everything, sources.read_shares(sample), seed)
            counts = Counter(entry.content.synthetic for entry in drawn)
            listed = ", ".join(f"{counts[label]} {label}" for label in Label)
            return drawn, f" ({listed}, of {len(everything)} samples)"
        case _:
            answered, unanswered = sources.comparisons(froms[0], froms[1])
            return answered, f" ({unanswered} that a model hasn't answered were left out)" if unanswered else ""


def _table(name: str, groups: Mapping[str, Mapping[str, Any]]) -> Table:
    statistics = [key for key in next(iter(groups.values())) if key not in ("n", "intervals")]
    table = Table(name, "n", *statistics)
    for group, values in groups.items():
        cells = []
        for key in statistics:
            bounds = values["intervals"][key]
            value = "-" if values[key] is None else f"{values[key]:.4f}"
            cells.append(f"{value} [{bounds[0]:.3f}, {bounds[1]:.3f}]" if bounds else value)
        table.add_row(group, str(values["n"]), *cells)
    return table


def _first(error: ValueError) -> str:
    errors = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    first = errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ").replace("Value error, ", "")


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
