"""Results that papers have published, one file per table or figure in `eval/published/`."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Self

import yaml
from pydantic import model_validator

from synuc.types import Frozen

FOLDER = files("eval").joinpath("published")

Value = int | float | str | None
"""A figure as printed, a text (a name, or a figure that is only approximate: `~8`), or None where none is given."""


class Published(Frozen):
    """A published table: where it stands, and its rows under `columns`. Units are named in the title."""

    source: str
    table: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"{self.table}: a row has more or fewer cells than {len(self.columns)}")
        return self

    def column(self, name: str) -> list[Value]:
        """The cells under a column.

        Raises:
            ValueError: there is no such column.
        """
        at = self.columns.index(name)
        return [row[at] for row in self.rows]

    def records(self) -> list[dict[str, Value]]:
        """The rows by the names of their columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def names() -> list[str]:
    """The names of all published tables, e.g. `synuc_table4`."""
    return sorted(file.name.removesuffix(".yaml") for file in FOLDER.iterdir() if file.name.endswith(".yaml"))


@lru_cache
def published(name: str) -> Published:
    """The table of that name.

    Raises:
        FileNotFoundError: there is none.
    """
    return Published.model_validate(yaml.safe_load(FOLDER.joinpath(f"{name}.yaml").read_text("utf-8")))
