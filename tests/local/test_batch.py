"""Whole runs by batch files on local Ray: with an endpoint that has batches, and with somebody who answers files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.run_folder import RunFolder
from pipelines.synthesize import synthesize
from synuc.config import RunConfig
from tests.batch_standin import Batches, answer_line, batch_endpoint
from tests.local.test_synthesize import counts, dialogues, quiet
from tests.standin import Standin, arguments

pytestmark = pytest.mark.usefixtures("ray_running")

DIALOGUES = 20


@pytest.fixture
def endpoint() -> Iterator[tuple[str, Batches]]:
    with batch_endpoint() as running:
        yield running


def config(seeds: Path, **engine: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "seeds": {"paths": [str(seeds)], "languages": []},
            "engine": {"kind": "batch", "model": "standin", "settle_s": 1, "poll_s": 0.2, **engine},
            "method": {"task_filter": False, "alpha": 0.0},
        }
    )


def whole(run: Path) -> None:
    """Every dialogue has its two samples, once."""
    ids, outcomes = counts(run)
    assert len(ids) == 2 * DIALOGUES
    assert set(ids.values()) == {1}
    assert outcomes["failed"] == 0


def test_all_dialogues_move_in_waves(tmp_path: Path, endpoint: tuple[str, Batches]) -> None:
    url, batches = endpoint
    seeds = dialogues(tmp_path / "seeds.jsonl", DIALOGUES)
    assert synthesize(config(seeds, base_url=url), tmp_path / "run", quiet())
    whole(tmp_path / "run")
    calls = RunFolder(tmp_path / "run").read("calls")
    assert len(calls) == len(batches.sent) == len(set(batches.sent))
    # Some eight steps, in which the dialogues stay together.
    assert len(batches.batches) < len(batches.sent) / 5


def test_a_stopped_run_goes_on_with_the_batches_it_has_sent(tmp_path: Path, endpoint: tuple[str, Batches]) -> None:
    url, batches = endpoint
    seeds = dialogues(tmp_path / "seeds.jsonl", DIALOGUES)
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(config(seeds, base_url=url).model_dump(mode="json")))
    command = [sys.executable, "-m", "synuc.cli", "synthesize", "--config", str(file), "--run", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and len(batches.batches) < 3:
            time.sleep(0.05)
        batches.hold = True
        # Long enough for what is on its way.
        time.sleep(5)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    batches.hold = False
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    whole(tmp_path / "run")
    assert set(Counter(batches.sent).values()) == {1}
    assert not any(RunFolder(tmp_path / "run").read("calls")["again"].to_pylist())


def test_somebody_else_answers_the_files(tmp_path: Path) -> None:
    seeds = dialogues(tmp_path / "seeds.jsonl", DIALOGUES)
    over = threading.Event()
    standin = Standin(arguments([]))

    def answer() -> None:
        done: set[Path] = set()
        while not over.wait(0.2):
            for wave in set((tmp_path / "run").glob("batches/standin/wave-*[0-9].jsonl")) - done:
                done.add(wave)
                lines = [answer_line(standin, json.loads(line)) for line in wave.read_text().splitlines()]
                with wave.with_suffix(".answers.jsonl").open("w") as file:
                    file.writelines(json.dumps(line) + "\n" for line in lines)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        assert synthesize(config(seeds), tmp_path / "run", quiet())
    finally:
        over.set()
        thread.join()
    whole(tmp_path / "run")
