"""The runs of a report, read once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from eval.config import EvalRun
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
    run: EvalRun
    method: Mapping[str, Any]
    metrics: Mapping[str, Any]

    @property
    def protocol(self) -> str:
        return self.folder.protocol

    @property
    def judged(self) -> str | None:
        """The runs whose answers were judged, if it asked about those."""
        return " against ".join(self.run.judged) or None


def read(folders: Sequence[EvalFolder]) -> list[Run]:
    """The runs in these folders. Folders of one name are told apart by the folder they are in."""
    counts = Counter(folder.path.name for folder in folders)
    runs = []
    for folder in folders:
        path, method = folder.path, folder.method
        name = path.name if counts[path.name] == 1 else f"{path.parent.name}/{path.name}"
        engines = method["engines"]
        models = [engine_name(engines[role]) if role in engines else None for role in ("model", "verifier", "judge")]
        run = EvalRun.model_validate(yaml.safe_load((path / "config.yaml").read_text("utf-8")))
        runs.append(Run(name, models[0] or models[1], models[2], folder, run, method, folder.metrics))
    return runs


def engine_name(engine: Mapping[str, Any]) -> str:
    """An engine's model, and its adapter if it has one, without the folders they are in.

    An adapter in `adapter` of a training run's folder is named like that folder.
    """
    name = Path(engine["model"]).name
    if not engine.get("adapter"):
        return name
    adapter = Path(engine["adapter"])
    return f"{name} + {adapter.parent.name if adapter.name == 'adapter' else adapter.name}"


def grouped(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs that belong together: those of one `group` setting over the same items, else those that differ in
    nothing but their seed.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        setting = {key: value for key, value in run.method.items() if key not in ("seed", "fingerprint")}
        name = run.run.settings.group
        key = ["group", name, run.method["items"]] if name else ["method", setting]
        groups.setdefault(json.dumps(key, sort_keys=True), []).append(run)
    return list(groups.values())


def models(runs: Sequence[Run]) -> str:
    """The runs' models; several adapters of one model are only counted."""
    names = list(dict.fromkeys(run.model or "" for run in runs))
    bases = {name.partition(" + ")[0] for name in names}
    if len(names) > 1 and len(bases) == 1 and all(" + " in name for name in names):
        return f"{bases.pop()} + {len(names)} adapters"
    return ", ".join(names)
