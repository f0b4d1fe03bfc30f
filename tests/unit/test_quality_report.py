"""The quality part of a run's report: figures as JSON, as tables, and by the command."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from actors import embedded
from pipelines.quality import figures as module
from pipelines.quality.difficulty import difficulties, difficulty
from pipelines.quality.figures import quality
from pipelines.quality.printing import print_quality
from pipelines.quality.rows import NotUcData
from pipelines.report import figures, print_report
from synuc.cli import app
from synuc.types import Label
from tests.quality import an_eval_run
from tests.runs import Run, a_run


@pytest.fixture(autouse=True)
def no_embedded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise embedded.EmbeddedModelMissing("not here")

    monkeypatch.setattr(embedded, "embedded_model", missing)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return a_run(tmp_path / "run")


def printed(data: dict[str, Any], width: int = 100) -> str:
    out = io.StringIO()
    print_quality(data, Console(width=width, file=out))
    return out.getvalue()


def evaluated(run: Run, path: Path) -> list[Path]:
    gold = {sample.id: str(sample.label) for sample in run.accepted()}
    return [
        an_eval_run(path / "1", gold, dict(gold)),
        an_eval_run(path / "2", gold, dict.fromkeys(gold, "ND")),
    ]


def test_figures_of_a_run(run: Run) -> None:
    data = quality(run.folder)
    assert json.loads(json.dumps(data)) == data
    assert data["compared"] == 11
    assert data["balance"]["label"]["counts"] == {"ND": 5, "ER": 3, "IC": 3}
    assert set(data["diversity"]) == {"en", "zh"}
    assert {name: part["texts"] for name, part in data["diversity"]["en"].items()} == {
        "all": 7,
        "ND": 3,
        "ER": 2,
        "IC": 2,
    }
    assert data["diversity"]["en"]["all"]["meaning_distance"] > 0
    assert data["diversity"]["zh"]["all"]["meaning_distance"] is None  # its model knows English
    assert data["dialogues"]["seeds"] == 5
    assert not data["giveaways"]["en"]["computed"]
    assert data["difficulty"] is None


def test_at_most_so_many_texts_are_compared_and_all_counted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 4)
    data = quality(run.folder)
    assert data["compared"] == 4
    assert sum(part["all"]["texts"] for part in data["diversity"].values()) == 4
    assert sum(data["balance"]["label"]["counts"].values()) == 11


def test_difficulty_of_repeated_runs(run: Run, tmp_path: Path) -> None:
    data = quality(run.folder, difficulties(evaluated(run, tmp_path)))["difficulty"]
    assert data["elsewhere"] == 0
    assert data["labels"]["ND"]["levels"] == {"easy": 5, "contested": 0, "hard": 0, "unknown": 0}
    assert data["labels"]["IC"]["levels"]["contested"] == 3
    assert data["labels"]["IC"]["wrong"] == 0.5


def test_printed_it_says_what_counts(run: Run, tmp_path: Path) -> None:
    found = difficulties(evaluated(run, tmp_path)) | {"gone": difficulty(Label.ND, ["ND", "ND"])}
    text = " ".join(printed(quality(run.folder, found)).split())
    for words in (
        "Balance of the accepted samples",
        "schema of er",
        "user turns, median",
        "Diversity of the follow-ups",
        "zh all",
        "Too few samples: needs two labels with 30 samples",
        "has 3 ND, 2 ER, 2 IC",
        "Difficulty for detectors",
        "1 items of those runs are no accepted sample of this one",
    ):
        assert words in text


def test_give_aways_are_printed_with_the_guesses_beside(run: Run) -> None:
    data = quality(run.folder)
    row = {"f1": 0.81, "f1_interval": [0.7, 0.9], "accuracy": 0.82, "accuracy_interval": [0.71, 0.91]}
    guess = {"f1": 0.5, "accuracy": 0.53}
    data["giveaways"]["en"] = {
        "labels": {"ND": 40, "IC": 60},
        "left_out": {"ER": 2},
        "computed": True,
        "words": row,
        "style": row,
        "chance": guess,
        "majority": guess,
        "telling": {"IC": [{"ngram": "[bold]also", "share": 0.4, "elsewhere": 0.01}]},
    }
    text = " ".join(printed(data).split())
    assert "0.81 0.70 to 0.90" in text
    assert "guessing" in text
    assert "From 40 ND, 60 IC; near guessing is good. Too few, left out: 2 ER." in text
    assert "IC, % here/elsewhere: [bold]also (40.0/1.0)" in text


def test_a_run_without_accepted_samples_says_so(run: Run) -> None:
    for part in run.folder.parts("samples"):
        Path(part).unlink()
    run.write([sample for sample in run.samples if sample.outcome != "accepted"])
    assert "No accepted sample" in printed(quality(run.folder))


def test_the_report_has_it_only_when_asked(run: Run) -> None:
    data = figures(run.folder)
    for there in (False, True):
        out = io.StringIO()
        print_report({**data, **({"quality": quality(run.folder)} if there else {})}, Console(width=80, file=out))
        assert ("Diversity of the follow-ups" in out.getvalue()) is there


def test_the_command_prints_it_as_text_and_as_json(run: Run, tmp_path: Path) -> None:
    path = str(run.folder.path)
    text = CliRunner().invoke(app, ["report", path, "--quality"])
    assert text.exit_code == 0, text.output
    assert "Balance of the accepted samples" in text.output
    assert "quality" not in json.loads(CliRunner().invoke(app, ["report", path, "--json"]).stdout)
    runs = [option for one in evaluated(run, tmp_path) for option in ("--difficulty", str(one))]
    data = json.loads(CliRunner().invoke(app, ["report", path, "--json", *runs]).stdout)
    assert data["quality"]["difficulty"]["labels"]["all"]["samples"] == 11


def test_an_export_is_enough(run: Run, tmp_path: Path) -> None:
    path = str(run.folder.path)
    assert CliRunner().invoke(app, ["export", path]).exit_code == 0
    moved = (run.folder.path / "export").rename(tmp_path / "moved")
    ours = json.loads(CliRunner().invoke(app, ["report", path, "--quality", "--json"]).stdout)["quality"]
    for place in (moved, moved / "uc-data.jsonl"):
        found = CliRunner().invoke(app, ["report", str(place), "--quality", "--json"])
        assert json.loads(found.stdout) == {"quality": ours}
    assert "Balance of the accepted samples" in CliRunner().invoke(app, ["report", str(moved), "--quality"]).output


@pytest.mark.parametrize("text", ["", "{}\n", "[1]\n", "no JSON\n"])
def test_a_file_that_is_no_uc_data_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(text)
    result = CliRunner().invoke(app, ["report", str(file), "--quality"])
    assert result.exit_code != 0
    assert isinstance(result.exception, NotUcData)
    assert str(file) in str(result.exception)


def test_the_export_command_balances(run: Run) -> None:
    result = CliRunner().invoke(app, ["export", str(run.folder.path), "--balance", "label, language"])
    assert result.exit_code == 0, result.output
    assert "9 accepted samples (3 ND, 3 ER, 3 IC)" in result.output
