"""Real dialogues through Ray, vLLM and the embedded model, in a process of their own as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.run_folder import RunFolder

pytestmark = pytest.mark.engine


def synuc(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "synuc.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=540)


def test_real_dialogues_become_uc_data(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    layers = ["--config", "configs/local.yaml", "--config", "configs/demo.yaml", "--set", "seeds.limit=6"]
    result = synuc("synthesize", *layers, "--run", run)
    assert result.returncode == 0, result.stderr

    folder = RunFolder(Path(run))
    assert len(folder.finished()) == 6
    calls = folder.read("calls")
    assert sum(calls["cached_tokens"].to_pylist()) > 0.4 * sum(calls["prompt_tokens"].to_pylist())
    usable = [error == "" for error in calls["error"].to_pylist()]
    assert sum(usable) > 0.5 * len(usable)

    report = synuc("report", run, "--json")
    assert report.returncode == 0, report.stderr
    assert json.loads(report.stdout)["adds_up"] is True
    assert synuc("show", run).returncode == 0

    again = synuc("synthesize", *layers, "--run", run)
    assert again.returncode == 0
    assert "Nothing left to do" in again.stdout


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine.model=/no/such/folder"], "/no/such/folder"),
        (["engine.kind=openai", "engine.model=m", "engine.base_url=http://127.0.0.1:9/v1"], "127.0.0.1:9"),
        (["engine.kind=openai", "engine.model=m", "engine.api_key_env=NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (["seeds.paths=[/no/such/file.jsonl]"], "/no/such/file.jsonl"),
        (["seeds.pathes=[a]"], "did you mean seeds.paths"),
    ],
)
def test_bad_input_ends_with_one_message_and_no_traceback(tmp_path: Path, overrides: list[str], message: str) -> None:
    sets = [part for override in overrides for part in ("--set", override)]
    layers = ["--config", "configs/local.yaml", "--config", "configs/demo.yaml"]
    result = synuc("synthesize", *layers, *sets, "--run", str(tmp_path / "run"))
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert message in result.stderr
