"""What every run's folder shares: files that appear whole, one writer at a time, and the settings it was begun with."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from synuc.layers import differences, fingerprint
from synuc.problem import Problem


class RunError(Problem):
    """A run folder that can't be used as asked; the message says what to do."""


def cache_folder() -> Path:
    """Where this program keeps what it can make or fetch again: SYNUC_CACHE, or a folder in the user's cache."""
    return Path(os.environ.get("SYNUC_CACHE") or Path.home() / ".cache" / "synuc")


def write_whole(path: Path, data: str) -> None:
    """Write a text file that no reader ever sees half of."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def json_line(row: Mapping[str, Any]) -> str:
    """A row of a file of JSON lines."""
    return json.dumps(row, ensure_ascii=False) + "\n"


class Folder:
    """A run's folder. Only the driver that holds `locked` may write."""

    def __init__(self, path: Path) -> None:
        """Raises RunError: the path is a URL."""
        if path.parts and path.parts[0].endswith(":"):
            raise RunError(f"{path} looks like a URL, and only runs of synuc synthesize can be at one: give a folder")
        self.path = path.resolve()

    def __str__(self) -> str:
        return str(self.path)

    def write(self, name: str, text: str) -> None:
        """Write a text file of the run, whole or not at all."""
        write_whole(self.path / name, text)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The right to write, for the length of the block.

        Raises:
            RunError: another process has it, or the folder can't be written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("a+")
        except OSError as error:
            raise RunError(f"can't write to the run folder {self.path}: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise RunError(
                    f"{self} is being written by process {lock.read() or '?'}; wait for it or choose another --run"
                ) from None
            lock.seek(0)
            lock.truncate()
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def begin(self, config: BaseModel, snapshot: Mapping[str, Any]) -> None:
        """Write the configuration, or check that it continues what is here.

        `snapshot` is what may not change; it and its fingerprint are kept in `method.json`.

        Raises:
            RunError: the method differs; the message names the fields.
        """
        if not self.begun():
            snapshot = json.loads(json.dumps(snapshot))
            data = {"fingerprint": fingerprint(snapshot), "method": snapshot}
            self.write("method.json", json.dumps(data, indent=2, ensure_ascii=False))
        self.check(snapshot)
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        self.write("config.yaml", text)

    def begun(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "method.json").exists()

    def check(self, snapshot: Mapping[str, Any]) -> None:
        """Make sure that a run was begun here with this method.

        Raises:
            RunError: the method differs; the message names the fields.
        """
        old = json.loads((self.path / "method.json").read_text("utf-8"))["method"]
        if changed := differences(old, json.loads(json.dumps(snapshot))):
            listed = "\n  ".join(changed)
            raise RunError(
                f"{self} was begun with another method, so it can't be continued with this one:\n  {listed}\n"
                "Use the old settings, or begin another run folder."
            )

    @property
    def method(self) -> dict[str, Any]:
        """The settings that the run was begun with, and their `fingerprint`."""
        data: dict[str, Any] = json.loads((self.path / "method.json").read_text("utf-8"))
        return {**data["method"], "fingerprint": data["fingerprint"]}
