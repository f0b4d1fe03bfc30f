"""The folder of a training run.

    config.yaml      the configuration of the last start (no secrets)
    method.json      what may not change, and its fingerprint
    metrics.jsonl    one line per logged step
    samples.jsonl    GRPO: one group of answers with their rewards per step
    refused.jsonl    examples that were longer than data.max_tokens
    tensorboard/     the same figures for TensorBoard
    checkpoints/     Ray Train's storage: the last checkpoints, whole
    base/            GRPO with `merge`: the backbone with the SFT adapter merged in, which the result sits on
    adapter/         the result: PEFT adapter, tokenizer, model card
    facts.json       what the model card says of the data
    merged/          the result merged into its backbone, if `synuc adapter merge` was asked for it
    error.txt        the whole text of the error that ended the last start, if one did

On several nodes it must be on storage that all of them share.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from synuc.folder import Folder, RunError, json_line, write_whole
from training.config import Backbone

LONGEST_ROW = 65_536
"""Bytes of the end of metrics.jsonl that surely hold a whole line."""


class TrainFolder(Folder):
    """Reads and writes the folder of a training run."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.metrics = self.path / "metrics.jsonl"
        self.samples = self.path / "samples.jsonl"
        self.refused = self.path / "refused.jsonl"
        self.base = self.path / "base"
        self.adapter = self.path / "adapter"
        self.facts = self.path / "facts.json"
        self.merged = self.path / "merged"
        self.storage = self.path / "checkpoints"
        self.error = self.path / "error.txt"
        # Written by a worker that met what another try can't mend.
        self.given_up = self.path / ".given-up"

    @classmethod
    def finished(cls, path: Path) -> TrainFolder:
        """The folder of a run that ended with an adapter.

        Raises:
            RunError: there is none at `path`.
        """
        folder = cls(path)
        if not (folder.path / "method.json").exists():
            raise RunError(f"{path} is no training run; make one with: synuc train sft --run {path} ...")
        if not folder.adapter.exists():
            raise RunError(f"{path} has no adapter yet; go on with the command that began it")
        return folder

    def backbone(self) -> Backbone:
        """What the adapter sits on: the model in `base/` where there is one, else the backbone of the method."""
        backbone = Backbone.model_validate(self.method["backbone"])
        return backbone.model_copy(update={"model": str(self.base)}) if self.base.is_dir() else backbone

    def rows(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; one that was cut off by a crash is left out."""
        return list(_read(self.metrics))

    def last_row(self) -> dict[str, Any] | None:
        """The last whole line of metrics.jsonl, read from its end: a running job is looked at all the time."""
        if not self.metrics.exists():
            return None
        with self.metrics.open("rb") as file:
            file.seek(max(0, self.metrics.stat().st_size - LONGEST_ROW))
            # What comes before the first newline may be the end of a line.
            lines = file.read().decode("utf-8", "replace").split("\n")
        for line in reversed(lines):
            with suppress(json.JSONDecodeError):
                row: dict[str, Any] = json.loads(line)
                return row
        return None

    def forget_after(self, step: int) -> None:
        """Drop the lines of steps that are done again because a run goes on from a checkpoint of `step`."""
        for path in (self.metrics, self.samples):
            if path.exists():
                kept = [row for row in _read(path) if row["step"] <= step]
                write_whole(path, "".join(map(json_line, kept)))


def add_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(map(json_line, rows))


def _read(path: Path) -> Iterable[dict[str, Any]]:
    # Not splitlines: it also splits at separators that JSON leaves as they are.
    for line in path.read_text("utf-8").split("\n") if path.exists() else ():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue
