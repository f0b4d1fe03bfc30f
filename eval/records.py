"""Records of files that users bring: .jsonl, .jsonl.gz, .json (an array) and .parquet; and what is wrong with one."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from synuc.problem import Problem

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")


class RecordsError(Problem):
    """Files whose records can't be used; the message says why and what to do."""


class Unfit(ValueError):
    """A record that gives no item; the message says why, in words for the person who made the file."""


def records(file: Path) -> Iterator[tuple[int, Any]]:
    """The records of a file with their numbers, from 1: those of lines in .jsonl, blank ones counted but left out.

    In place of a line that is no JSON comes the `Unfit` that says so.

    Raises:
        RecordsError: the file can't be read as a whole.
    """
    name = file.name.lower()
    try:
        if name.endswith(".parquet"):
            yield from enumerate(pq.read_table(file).to_pylist(), 1)
        elif name.endswith(".json"):
            rows = json.loads(file.read_bytes())
            if not isinstance(rows, list):
                raise RecordsError(f"{file}: a .json is an array of items; name it .jsonl if each line is one")
            yield from enumerate(rows, 1)
        else:
            with gzip.open(file) if name.endswith(".gz") else file.open("rb") as lines:
                yield from ((number, _parsed(line)) for number, line in enumerate(lines, 1) if line.strip())
    except (OSError, EOFError, zlib.error, ValueError, RecursionError, pa.ArrowException) as error:
        why = " ".join(str(error).split())
        raise RecordsError(f"{file} can't be read ({why}); mend it or leave it out") from None


def first_problem(error: ValidationError, whole: str = "") -> str:
    """The first thing that is wrong, as `field: what`. `whole` stands for the field, where it is the record itself."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"])) or whole
    what = first["msg"].removeprefix("Value error, ")
    return f"{where}: {what}" if where else what


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return Unfit(f"the line is no valid JSON ({error})")
