"""Two experiments at toy size: real synthesis, training and evaluation of the embedded model on two cores.

About an hour: `make test-slow`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.record import Record, read
from experiments.steps import StepFolder

pytestmark = [pytest.mark.engine, pytest.mark.timeout(7200)]

FILES = ("table6-retrieval", "figure7-training-stages")


def synuc(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "synuc.cli", "experiment", *arguments], text=True, check=False, stdout=subprocess.PIPE
    )
    print(done.stdout)
    assert done.returncode == 0
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that holds both experiments."""
    home = tmp_path_factory.mktemp("experiments") / "run"
    for file in FILES:
        synuc("run", f"configs/experiments/{file}.yaml", "--scale", "toy", "--run", str(home))
    return home


def of(home: Path, name: str) -> Record:
    return next(kept for kept in read(home) if kept.name == name)


def test_all_cells_are_done(home: Path) -> None:
    for file in FILES:
        assert {cell.state(home) for cell in of(home, file).cells} == {"done"}


def test_both_experiments_share_what_they_have_in_common(home: Path) -> None:
    # Three retrievals; the method of the other experiment is one of them.
    made = [step.name for step in (home / "steps").iterdir() if step.name.startswith("synthesize-")]
    assert len(made) == 3
    retrieval, stages = (of(home, file) for file in FILES)
    ours = next(cell for cell in retrieval.cells if (cell.variant, cell.training) == ("LLM-guided", "grpo_attribution"))
    same = next(cell for cell in stages.cells if cell.training == "grpo_attribution")
    assert ours.steps["uc"] == same.steps["uc"]


def test_every_classification_has_its_own_answers(home: Path) -> None:
    for cell in of(home, "figure7-training-stages").cells:
        metrics = StepFolder(home, cell.steps["uc"]).metrics()
        assert metrics["overall"]["n"] == 36
        states = StepFolder(home, cell.steps["states"]).metrics()
        assert states["n"] + sum(states["excluded"].values()) == 36


def test_the_same_command_does_nothing_again(home: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (home / "steps").glob("*/done.json")}
    said = synuc("run", f"configs/experiments/{FILES[0]}.yaml", "--scale", "toy", "--run", str(home))
    steps = {name for cell in of(home, FILES[0]).cells for name in cell.needs}
    assert f"{len(steps)} of {len(steps)} steps are done." in said
    assert {path: path.stat().st_mtime_ns for path in (home / "steps").glob("*/done.json")} == before


def test_a_changed_setting_reruns_what_depends_on_it(home: Path) -> None:
    before = set((home / "steps").iterdir())
    changed = ["--set", "variants.Lexical.grpo.settings.reward.beta=0.1"]
    synuc("run", f"configs/experiments/{FILES[0]}.yaml", "--scale", "toy", "--run", str(home), *changed)
    new = sorted(path.name.partition("-")[0] for path in set((home / "steps").iterdir()) - before)
    assert new == ["grpo", "uc"]


def test_the_report_shows_both_beside_the_paper(home: Path) -> None:
    synuc("report", str(home))
    text = (home / "report.md").read_text("utf-8")
    assert "Schema retrieval strategies (toy scale)" in text
    assert "Training stages and decision states (toy scale)" in text
    assert "77.68" in text
    assert "Cells without a result" not in text
    done = json.loads(next((home / "steps").glob("sft-*/done.json")).read_text("utf-8"))
    assert done["seconds"] > 0
