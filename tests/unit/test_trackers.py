"""A tracker without its package is named before training starts."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from synuc.layers import compose
from tests.tiny import export_folder
from training import trackers
from training.backbone import BackboneError
from training.config import Record, SftConfig
from training.driver import train_sft
from training.trackers import PACKAGES, TrackerMissing, check_trackers

SFT = Path(__file__).parents[2] / "configs" / "train" / "sft.yaml"


def installed(monkeypatch: pytest.MonkeyPatch, packages: Collection[str]) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: object() if name in packages else None)


def test_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, ["tensorboard", "mlflow"])
    check_trackers(["tensorboard", "mlflow"])
    check_trackers([])
    with pytest.raises(TrackerMissing, match=r"record\.trackers names wandb, .*: pip install wandb, or take wandb out"):
        check_trackers(["tensorboard", "wandb"])
    installed(monkeypatch, ["tensorboardX"])
    check_trackers(["tensorboard"])
    installed(monkeypatch, [])
    with pytest.raises(TrackerMissing, match="pip install tensorboardX"):
        check_trackers(["tensorboard"])


def test_every_tracker_of_the_configuration_has_its_packages() -> None:
    names = get_args(get_args(Record.model_fields["trackers"].annotation)[0])
    assert {*PACKAGES} == {*names}


def test_training_stops_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = export_folder(tmp_path / "export")
    # Were the tracker not missed first, the backbone would be, so that nothing starts here in any case.
    settings = ["backbone.model=/no/such/folder", f"data.path={str(data)!r}"]
    config = compose(SftConfig, [SFT], [*settings, "record.trackers=[mlflow]"])
    installed(monkeypatch, [])
    with pytest.raises(TrackerMissing, match="names mlflow"):
        train_sft(config, tmp_path / "run", Console(quiet=True))
    installed(monkeypatch, ["mlflow"])
    with pytest.raises(BackboneError, match="no such folder"):
        train_sft(config, tmp_path / "run", Console(quiet=True))
