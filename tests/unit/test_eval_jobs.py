"""What the commands make of their arguments and say of the figures, with nothing asked."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from eval import jobs
from eval.config import EvalRun, Settings
from eval.folder import EvalFolder
from eval.jobs import Job
from eval.protocol import Evaluation, Item, Result
from eval.report.blocks import Table
from eval.report.html import overview
from eval.report.runs import read
from synuc.cli_eval import app
from synuc.problem import Problem

DATA = Path(__file__).parents[1] / "data"
ENDPOINT = "m@http://127.0.0.1:9/v1"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Evaluation]:
    """The evaluations that would run; every item fails."""
    evaluations: list[Evaluation] = []

    def evaluate(
        evaluation: Evaluation,
        items: Sequence[Item],
        run: EvalRun,
        path: Path,
        console: Console,
        refused: Sequence[Mapping[str, Any]] = (),
    ) -> dict[str, Any]:
        evaluations.append(evaluation)
        return evaluation.figures(items, [Result(id=item["id"], kind="gone", reason="") for item in items])

    monkeypatch.setattr(jobs, "evaluate", evaluate)
    return evaluations


class Said(Job):
    """A command and all that it says."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(["synuc", "eval"], Settings(**settings), folder, Console(file=io.StringIO(), width=400))

    @property
    def text(self) -> str:
        assert isinstance(self.console.file, io.StringIO)
        return self.console.file.getvalue()


def bench(path: Path, *labels: str) -> list[str]:
    rows = [json.loads(line) for line in (DATA / "uc_bench.jsonl").read_text("utf-8").splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row["label"] in labels), "utf-8")
    return [str(path)]


def test_an_adapter_is_asked_as_in_training_wherever_it_is_named(asked: list[Evaluation], tmp_path: Path) -> None:
    items = bench(tmp_path / "bench.jsonl", "ND", "ER", "IC")
    config = tmp_path / "detector.yaml"
    config.write_text(f"engine: {{kind: vllm, model: embedded, adapter: {tmp_path}}}\n")
    jobs.uc(Said(tmp_path), "embedded", tmp_path, items, "auto", "reasoned")
    jobs.uc(Said(tmp_path), str(config), None, items, "auto", "reasoned")
    jobs.uc(Said(tmp_path, engine={"adapter": str(tmp_path)}), "embedded", None, items, "auto", "reasoned")
    jobs.uc(Said(tmp_path), "embedded", None, items, "auto", "reasoned")
    jobs.uc(Said(tmp_path), ENDPOINT, None, items, "auto", "reasoned")
    prompts = [evaluation.snapshot()["prompt"] for evaluation in asked]
    assert prompts == ["trained", "trained", "trained", "zero_shot", "zero_shot"]


def test_a_missing_label_and_failures_are_said(asked: list[Evaluation], tmp_path: Path) -> None:
    job = Said(tmp_path)
    jobs.uc(job, ENDPOINT, None, bench(tmp_path / "bench.jsonl", "ND"), "auto", "reasoned")
    assert "recall_ic –  (no item is ER, IC: 0 in the means)" in job.text
    assert "without a readable label, and so wrong: failed 12" in job.text
    job = Said(tmp_path)
    jobs.response(job, ENDPOINT, ENDPOINT, bench(tmp_path / "bench.jsonl", "IC"))
    assert "conflicts recognised: 0.00 of 12; failed: gone 12" in job.text


def test_settings_that_a_protocol_has_of_its_own_are_named(asked: list[Evaluation], tmp_path: Path) -> None:
    job = Said(tmp_path, temperature=0.5, max_tokens=99)
    jobs.coninstruct(job, ENDPOINT, None, DATA / "coninstruct_cases.jsonl", "detect", False)
    assert "not used, because the protocol sets it: temperature, max_tokens" in job.text
    job = Said(tmp_path)
    jobs.coninstruct(job, ENDPOINT, None, DATA / "coninstruct_cases.jsonl", "detect", False)
    assert "not used" not in job.text


def test_conflictprobe_takes_max_tokens_and_says_that_nothing_was_finished(
    asked: list[Evaluation], tmp_path: Path
) -> None:
    job = Said(tmp_path, max_tokens=4096)
    with pytest.raises(Problem, match=r"none of the \d+ scenarios was finished: gone"):
        jobs.conflictprobe(job, ENDPOINT, ENDPOINT, DATA / "conflictprobe", "drop", "ori")
    assert asked[0].snapshot()["max_tokens"] == 4096


@pytest.mark.parametrize(("reasoning", "thoughts"), [("keep", ""), ("keep", "Hm."), ("drop", "")])
def test_thoughts_that_are_not_there_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reasoning: str, thoughts: str
) -> None:
    """The condition `keep` of a model whose answers hold no thoughts is that of `drop`, and that is said."""
    verdicts = {"evidence": "", "surfaced": "present", "conflict_named": "named", "recall": "present"}
    conflict = {"source_turn": 1, "trap_turn": 2, "trap": verdicts, "recall": verdicts}
    reply = {"text": "t", "thoughts": thoughts, "cut": False}
    value = {"replies": [reply], "conflicts": [conflict]}

    def evaluate(evaluation: Evaluation, items: Sequence[Item], run: EvalRun, path: Path, *_: Any) -> dict[str, Any]:
        results = [Result(id=item["id"], value=value) for item in items]
        for result in results:
            EvalFolder(path).append("results", result.model_dump())
        return evaluation.figures(items, results)

    monkeypatch.setattr(jobs, "evaluate", evaluate)
    job = Said(tmp_path)
    jobs.conflictprobe(job, ENDPOINT, ENDPOINT, DATA / "conflictprobe", reasoning, "ori")
    assert ("nothing to keep" in job.text) == (reasoning == "keep" and not thoughts)


def test_arguments_that_do_not_go_together(tmp_path: Path) -> None:
    cases = DATA / "coninstruct_cases.jsonl"
    with pytest.raises(Problem, match="--guided is for --task resolve, not for detect"):
        jobs.coninstruct(Said(tmp_path), ENDPOINT, None, cases, "detect", True)
    with pytest.raises(Problem, match="--judge is for --task resolve and priority"):
        jobs.coninstruct(Said(tmp_path), ENDPOINT, ENDPOINT, cases, "detect", False)
    with pytest.raises(Problem, match="an endpoint shows no hidden states"):
        jobs.states_of(Said(tmp_path), ENDPOINT, None, [], lambda *_: pytest.fail("nothing is loaded"))
    with pytest.raises(Problem, match="--task priority needs a judge"):
        jobs.coninstruct(Said(tmp_path), ENDPOINT, None, cases, "priority", False)


def test_states_of_a_model_are_those_of_a_run_that_is_made_first(
    asked: list[Evaluation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Sequence[Path]] = []
    monkeypatch.setattr(jobs, "states", lambda job, runs, load: drawn.append(runs))
    items = bench(tmp_path / "bench.jsonl", "ND", "ER", "IC")
    jobs.states_of(Said(tmp_path / "run"), "embedded", None, items, lambda *_: pytest.fail("nothing is loaded"))
    assert [evaluation.name for evaluation in asked] == ["uc"]
    assert drawn == [[tmp_path / "run"]]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["runs/a", "--model", "m"],
        ["--model", "m", "--run", "r"],
        ["--bench", "b"],
        ["a", "--run", "r"],
    ],
)
def test_states_are_of_runs_or_of_a_model_and_items(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["states", *arguments])
    assert isinstance(result.exception, Problem)
    assert "or --model and --bench" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [
        (["response", "--model", "Qwen/Q-4B", "--judge", ENDPOINT, "--bench", "b"], "runs/response-Q-4B"),
        (["uc", "--model", "m/q", "--adapter", "runs/sft-1/adapter", "--bench", "b"], "runs/uc-q-sft-1"),
        (["uc", "--model", "configs/endpoint.yaml", "--mode", "label", "--bench", "b"], "runs/uc-label-endpoint"),
        (["verifier", "--engine", ENDPOINT, "--bench", "b"], "runs/verifier-m"),
        (
            ["coninstruct", "--model", "org/big m:latest@http://h/v1", "--data", "d"],
            "runs/coninstruct-detect-big-m-latest",
        ),
        (["conflictprobe", "--model", "m", "--judge", "j", "--data", "d"], "runs/conflictprobe-m-drop-ori"),
        (["states", "--model", "m", "--bench", "b"], "runs/states-m"),
        (["response", "--model", "m", "--judge", "j", "--bench", "b", "--run", "mine"], "mine"),
    ],
)
def test_a_run_without_a_name_is_named_after_what_is_evaluated(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], folder: str
) -> None:
    begun: list[Path] = []
    for command in ("uc", "response", "verifier", "coninstruct", "conflictprobe", "states_of"):
        monkeypatch.setattr(jobs, command, lambda job, *given: begun.append(job.folder))
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert begun == [Path(folder)]


def test_refused_records_are_kept_and_counted(tmp_path: Path) -> None:
    """A finished run is evaluated again: nothing has to be asked."""
    good = json.loads((DATA / "uc_bench.jsonl").read_text("utf-8").splitlines()[0])
    file = tmp_path / "bench.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (good, {**good, "id": "x", "label": "?"}, 7)), "utf-8")
    folder = EvalFolder(tmp_path / "run")
    folder.path.mkdir()
    value = {"predicted": "ND", "kind": "", "answer": "", "probabilities": None, "prompt_tokens": 1}
    folder.append("results", Result(id=good["id"], value=value).model_dump())
    job = Said(folder.path)
    jobs.uc(job, ENDPOINT, None, [str(file)], "auto", "reasoned")
    assert "2 of 3 records were refused" in job.text
    assert [(row["file"], row["line"]) for row in folder.refused()] == [(str(file), 2), (str(file), 3)]
    assert "no label" in folder.refused()[0]["reason"]
    described = overview(read([folder])).blocks[0]
    assert isinstance(described, Table)
    assert described.rows[0].cells[described.columns.index("Refused")] == 2
