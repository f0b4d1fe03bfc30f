"""Evaluations on the real engine: free answers, labels with probabilities, and an engine that is killed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from eval import jobs
from eval.folder import EvalFolder
from tests.local.test_engine_death import engine_processes, title
from tests.local.test_eval import BENCH, job, some_items

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("ray_running"), pytest.mark.timeout(1200)]

ENGINE: dict[str, Any] = {"engine": {"max_in_flight": 8}}
SHORT = ["wc-001", "lm-001", "sg-001"]


def test_probabilities_of_the_labels(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    items = some_items(tmp_path / "bench.jsonl", SHORT)
    for prompt in ("trained", "zero_shot"):
        jobs.uc(job(tmp_path / prompt, **ENGINE), "embedded", None, items, prompt, "label")
        folder = EvalFolder(tmp_path / prompt)
        answered = [result.value for result in folder.results() if result.value]
        assert len(answered) == 3
        if prompt == "trained":  # the answer is begun where the label stands, so even this model gives labels
            assert all(value["probabilities"] for value in answered)
            assert folder.metrics["calibration"]["n"] == 3
        assert all(call["completion_tokens"] <= 8 for call in folder.calls())


def test_a_killed_engine_is_replaced_and_no_item_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    folder = EvalFolder(tmp_path / "run")
    killed: list[psutil.Process] = []
    over = threading.Event()

    def kill_one() -> None:
        while not over.wait(0.2):
            if not killed and folder.results():
                killed.extend(process for process in engine_processes() if "EngineCore" in title(process))
                for process in killed:
                    process.kill()

    thread = threading.Thread(target=kill_one)
    thread.start()
    run = job(folder.path, engine={"max_in_flight": 2}, cluster={"dialogues_in_flight": 2}, max_tokens=48)
    try:
        jobs.uc(run, "embedded", None, BENCH, "zero_shot", "reasoned")
    finally:
        over.set()
        thread.join()
    assert len(killed) == 1
    results = folder.results()
    assert len(results) == 36
    # Their prompts fit, and one death isn't enough to give an item up.
    assert {result.kind for result in results} == {""}
    assert folder.metrics["kinds"]["cut_off"] + folder.metrics["kinds"]["unparseable"] > 0
