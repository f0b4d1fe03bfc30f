"""The folder of an evaluation, and what of a start needs no Ray."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from actors.engine import EngineUnavailable
from eval.config import EvalRun, Settings, engine_of
from eval.driver import EvaluationStopped, evaluate
from eval.folder import EvalFolder
from eval.protocol import Result
from eval.response import Response
from synuc.folder import RunError

ITEMS = [{"id": name, "subset": "s", "language": "en"} for name in "ab"]
ANSWERED = {"answer": "Sure.", "cut": False, "evidence": "", "reason": "", "recognised": True}


def a_run(seed: int = 0) -> EvalRun:
    engine = engine_of("m@http://127.0.0.1:9/v1", {"give_up_after_s": 0})
    return EvalRun(command=(), settings=Settings(seed=seed), engines={"model": engine, "judge": engine})


def start(path: Path, seed: int = 0, console: Console | None = None) -> dict[str, Any]:
    return evaluate(Response(), ITEMS, a_run(seed), path, console or Console(file=io.StringIO()))


@pytest.fixture
def finished(tmp_path: Path) -> EvalFolder:
    """A run whose items all have results."""
    folder = EvalFolder(tmp_path / "a [run]")
    folder.path.mkdir()
    for item in ITEMS:
        folder.append("results", Result(id=item["id"], value=ANSWERED).model_dump())
    start(folder.path)
    return folder


def test_a_line_of_which_the_disk_takes_a_part_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = EvalFolder(tmp_path)
    folder.append("calls", {"item": "a"})

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data)[:5])

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda path, *_, **__: Full(path, "a"))
        with pytest.raises(OSError, match="No space left"):
            folder.append("calls", {"item": "b"})
    folder.append("calls", {"item": "c"})
    assert list(folder.calls()) == [{"item": "a"}, {"item": "c"}]


def test_what_is_no_evaluation_is_named_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no folder of an evaluation"):
        EvalFolder.existing(tmp_path)
    # A run of synthesis.
    (tmp_path / "method.json").write_text(json.dumps({"fingerprint": "", "method": {"seeds": {}}}))
    with pytest.raises(RunError, match="is no folder of an evaluation"):
        EvalFolder.existing(tmp_path)


def test_a_run_of_another_protocol_is_refused(finished: EvalFolder) -> None:
    with pytest.raises(RunError, match="is a run of the protocol response, but one of uc is needed"):
        EvalFolder.existing(finished.path, "uc")


def test_a_folder_is_not_bound_to_a_model_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable):
        start(tmp_path / "run")
    assert not EvalFolder(tmp_path / "run").begun()


def test_figures_that_were_added_stay_until_results_change(finished: EvalFolder) -> None:
    finished.write_metrics({**finished.metrics, "states": {"n": 2}})
    said = io.StringIO()
    start(finished.path, console=Console(file=said))
    assert f"all 2 items of {finished.path} have results" in said.getvalue()
    assert finished.metrics["states"] == {"n": 2}
    assert finished.metrics["overall"]["n"] == 2


def test_other_items_are_named_with_their_number(finished: EvalFolder) -> None:
    with pytest.raises(RunError, match=r"items: 2 of digest .* -> 1 of digest"):
        evaluate(Response(), ITEMS[:1], a_run(), finished.path, Console())
    with pytest.raises(RunError, match="seed: 0 -> 1"):
        start(finished.path, seed=1)


def test_a_full_disk_stops_with_what_to_do(finished: EvalFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(EvalFolder, "write_items", full)
    with pytest.raises(EvaluationStopped, match=r"No space left on device.*make room"):
        start(finished.path)
