"""Every shipped experiment at toy size, from its file to its report, with a scripted model.

Real are the programs that make the samples, retrieval, exports, and the figures of the data. A training only looks at
what it is given, and an evaluation only writes its figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from actors.retrieval import Similarity, similarity
from experiments import report
from experiments.config import TRAININGS, Experiment, load, shipped
from experiments.driver import Crew, run
from experiments.plan import Step
from experiments.record import read
from experiments.steps import Here, StepFolder, perform
from pipelines.programs import program, prompts_version
from pipelines.run_folder import RunFolder, sample_row
from synuc.config import RunConfig, method_snapshot
from synuc.effects import Compare
from synuc.sample import Outcome
from synuc.types import Label, LLMRequest
from tests.scripted import a_seed
from tests.unit.test_baselines import BaselineDriver, Script

ROOT = Path(__file__).parents[2]
SEEDS = 6
SHARES = {"precision": 0.5, "recall": 0.5, "f1": 0.5, "recall_ic": 0.5, "unparseable": 0.0, "n": 36.0}
FIGURES: dict[str, dict[str, Any]] = {
    "uc": {"overall": SHARES, "subsets": {"WildChat-UC": SHARES}},
    "states": {"silhouette": 0.25, "n": 36},
    "pairwise": {"overall": {"shares": {"win": 0.5, "tie": 0.25, "loss": 0.25}, "n": 12}},
}


def own_label_only(request: LLMRequest) -> dict[str, Any]:
    """A message of a triplet isn't taken for another of it: such a claim's key ends in two labels."""
    return {"claim_holds": not {*request.key.split("-")[-2:]} <= {*Label.__members__}}


@dataclass
class ToyDriver(BaselineDriver):
    """Carries out what the programs of all experiments ask for."""

    script: Script = field(default_factory=lambda: Script({"judge_global": own_label_only}))
    compare: Similarity | None = None

    def _carry_out(self, effect: Any) -> Any:
        if isinstance(effect, Compare):
            assert self.compare is not None
            return self.compare(effect.queries, effect.documents)
        return super()._carry_out(effect)


def synthesize(config: RunConfig, path: Path) -> None:
    driver = ToyDriver(compare=similarity(config.method))
    seeds = [a_seed(f"seed{n}") for n in range(SEEDS)]
    folder = RunFolder(path)
    folder.begin(config, method_snapshot(config, prompts_version(config.method.program)))
    folder.write_part("seeds", [{"id": seed.id, "seed": seed.model_dump_json()} for seed in seeds])
    read = {"read": SEEDS, "taken": SEEDS}
    folder.write_ingest({**read, "trimmed": 0, "refused": {}, "sources": {"chats": read}})
    make = program(config.method.program)
    samples = [sample for seed in seeds for sample in driver.run(make(seed, config.method))]
    folder.write_part("samples", [sample_row(sample) for sample in samples])


def do(step: Step, here: Here) -> None:
    if step.kind == "synthesize":
        synthesize(step.settings, here.of(step))
    elif step.kind in ("export", "quality"):
        perform(step, here)
    elif step.kind in ("sft", "grpo"):
        rows = (here.of(step.after[0]) / "export" / f"uc-data-{step.kind}.jsonl").read_text("utf-8")
        assert rows.count("\n") >= SEEDS
    else:
        StepFolder(here.run, step.name).write_metrics(FIGURES[step.kind])


@contextmanager
def crew(experiment: Experiment) -> Iterator[Crew]:
    yield Crew(do, 1, [{"CPU": 2}])


@pytest.mark.parametrize("file", shipped(ROOT / "configs" / "experiments"), ids=lambda file: file.stem)
def test_from_its_file_to_its_report(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    experiment = load(file, "toy")
    run(experiment, file.stem, "toy", tmp_path / "run", Console(quiet=True), crew)
    (kept,) = read(tmp_path / "run")
    assert {cell.variant for cell in kept.cells} == set(experiment.variants)
    assert {cell.state(tmp_path / "run") for cell in kept.cells} == {"done"}
    for folder in (tmp_path / "run" / "steps").glob("synthesize-*"):
        accepted = {sample.label for sample in RunFolder.existing(folder).samples(Outcome.ACCEPTED.value)}
        assert accepted == set(Label)
    report.build(tmp_path / "run", tmp_path / "page.html")
    text = (tmp_path / "page.md").read_text("utf-8")
    # The reference of a comparison has none with itself.
    for cell in (cell for cell in kept.cells if cell.steps.keys() & {*experiment.evaluations}):
        assert f"| {cell.variant} | {TRAININGS[cell.training]} | 1 |" in text
