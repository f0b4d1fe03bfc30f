"""The folder of an evaluation.

    config.yaml       the command's settings (no secrets)
    method.json       what may not change while it is continued, and its fingerprint
    items.jsonl       what is asked about
    refused.jsonl     records of the benchmark's files that give no item: `file`, `line`, `reason`
    results.jsonl     what came out, one line per item; a later line of the same item counts
    answers.jsonl     every prompt and its answer, of the models and of the judges
    calls.jsonl       the usage ledger: one line per attempt, with prompt and whole answer of those that were no use
    metrics.json      the figures

Lines are appended as they come, and a line that was being written when the process died doesn't count.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.protocol import Item, Result
from synuc.folder import Folder, RunError, json_line, write_whole


class EvalFolder(Folder):
    """Reads and writes the folder of an evaluation."""

    @classmethod
    def existing(cls, path: Path, protocol: str | None = None) -> EvalFolder:
        """The folder of an evaluation with figures, of that protocol if one is named.

        Raises:
            RunError: there is none at `path`.
        """
        folder = cls(path)
        if not folder.begun() or "protocol" not in folder.method:
            raise RunError(f"{path} is no folder of an evaluation; make one with: synuc eval ... --run {path}")
        if not folder.finished():
            raise RunError(f"{path} is not finished; give its command again")
        if protocol and folder.protocol != protocol:
            raise RunError(f"{path} is a run of the protocol {folder.protocol}, but one of {protocol} is needed")
        return folder

    @property
    def protocol(self) -> str:
        name: str = self.method["protocol"]
        return name

    def write_items(self, items: Sequence[Item], refused: Sequence[Mapping[str, Any]] = ()) -> None:
        write_whole(self.path / "items.jsonl", "".join(map(json_line, items)))
        write_whole(self.path / "refused.jsonl", "".join(map(json_line, refused)))

    def items(self) -> list[dict[str, Any]]:
        return list(self._rows("items"))

    def refused(self) -> list[dict[str, Any]]:
        """The records that give no item, as `eval.bench.Refused`."""
        return list(self._rows("refused"))

    def results(self) -> list[Result]:
        """The last result of each item that has one."""
        return list({row["id"]: Result.model_validate(row) for row in self._rows("results")}.values())

    def answers(self) -> Iterator[dict[str, Any]]:
        """`item`, `request` (a hash), `stage`, `role`, `messages`, `reply`."""
        return self._rows("answers")

    def calls(self) -> Iterator[dict[str, Any]]:
        """As `actors.engine.Call`, and the `item`; with an `error` also the `messages` that were asked."""
        return self._rows("calls")

    def append(self, table: str, row: Mapping[str, Any]) -> None:
        """Write a line, or nothing of it.

        Raises:
            OSError: it can't be written.
        """
        line = json_line(row).encode()
        with (self.path / f"{table}.jsonl").open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if file.write(line) < len(line):
                # A full disk took a part of it, onto which the next line would be written.
                file.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def mend(self) -> None:
        """Cut off what a process that died left of its last line, so that the next line begins anew."""
        for table in ("results", "answers", "calls"):
            path = self.path / f"{table}.jsonl"
            if path.exists() and not (data := path.read_bytes()).endswith(b"\n"):
                with path.open("r+b") as file:
                    file.truncate(data.rfind(b"\n") + 1)

    @property
    def metrics(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.path / "metrics.json").read_text("utf-8"))
        return data

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        write_whole(self.path / "metrics.json", json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")

    def finished(self) -> bool:
        """Whether it holds figures."""
        return (self.path / "metrics.json").exists()

    def drop_metrics(self) -> None:
        """Take the figures away, so that nobody reads them beside newer results."""
        (self.path / "metrics.json").unlink(missing_ok=True)

    def _rows(self, table: str) -> Iterator[dict[str, Any]]:
        path = self.path / f"{table}.jsonl"
        if not path.exists():
            return
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield json.loads(line)
