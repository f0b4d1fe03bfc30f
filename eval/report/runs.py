"""The runs of a report, read once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from eval.folder import EvalFolder


@dataclass(frozen=True)
class Run:
    """A finished evaluation. `name` is its folder's.

    `model` is the evaluated model, or the one in the place of the method's verifier, with its adapter if it has one;
    None where a judge looked at what other runs have asked.
    """

    name: str
    model: str | None
    judge: str | None
    folder: EvalFolder
    method: Mapping[str, Any]
    metrics: Mapping[str, Any]

    @property
    def protocol(self) -> str:
        return self.folder.protocol

    @property
    def command(self) -> list[str]:
        """The command line that made it, word by word."""
        command: list[str] = yaml.safe_load((self.folder.path / "config.yaml").read_text("utf-8"))["command"]
        return command


def read(folders: Sequence[EvalFolder]) -> list[Run]:
    """The runs in these folders. Folders of one name are told apart by the folder they are in."""
    counts = Counter(folder.path.name for folder in folders)
    runs = []
    for folder in folders:
        path, method = folder.path, folder.method
        name = path.name if counts[path.name] == 1 else f"{path.parent.name}/{path.name}"
        engines = method["engines"]
        models = [engine_name(engines[role]) if role in engines else None for role in ("model", "verifier", "judge")]
        runs.append(Run(name, models[0] or models[1], models[2], folder, method, folder.metrics))
    return runs


def engine_name(engine: Mapping[str, Any]) -> str:
    """An engine's model, and its adapter if it has one, without the folders they are in."""
    name = Path(engine["model"]).name
    return f"{name} + {Path(engine['adapter']).name}" if engine.get("adapter") else name


def same_but_seed(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs in groups whose settings are the same apart from their seed."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        setting = {key: value for key, value in run.method.items() if key not in ("seed", "fingerprint")}
        groups.setdefault(json.dumps(setting, sort_keys=True), []).append(run)
    return list(groups.values())
