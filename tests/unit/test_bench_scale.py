"""The arithmetic and the instruments of `tests.bench`, without Ray, vLLM and the peers."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import jinja2
import psutil
import pytest

from actors.journal import load_memory
from synuc.config import Method
from synuc.effects import RecordTrajectory
from synuc.types import Label
from tests.bench.endpoint import Endpoint, middle_rate, planned_service, watched
from tests.bench.fixed import ANSWER_TOKENS, fixed, requests_of
from tests.bench.memory_actor import has_seen, workers_until_saturation
from tests.bench.peers.__main__ import Figures, Size, job, verdicts
from tests.bench.peers.job import CALLS, Job
from tests.bench.processes import CommandFailed, watch
from tests.bench.seeds import read, write_seeds
from tests.bench.stages import Figures as Side
from tests.bench.stages import rows
from tests.scripted import Driver, Script, a_seed
from tests.standin import arguments

ROLES = ("user", "assistant")
TURNS = [("Write a bedtime story.", "Once."), ("Make it calm.", "A calm night.")]
CONFLICTS = Method(labels=(Label.ER, Label.IC), task_filter=False)


def ask(endpoint: Endpoint, *roles: str) -> int:
    messages = [{"role": role, "content": f'say "system", {role}'} for role in roles]
    body = json.dumps({"model": "standin", "messages": messages}).encode()
    try:
        with urllib.request.urlopen(f"{endpoint.url}/chat/completions", data=body, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_window_counts_a_jobs_calls_and_not_trials() -> None:
    with watched(4, 0.01) as endpoint:
        assert endpoint.window().calls == 0
        assert ask(endpoint, "user") == 200
        assert ask(endpoint) == 400
        for _ in range(3):
            assert ask(endpoint, "system", "user") == 200
        window = endpoint.window()
    assert window.calls == 3
    assert window.seconds >= 3 * 0.01
    assert window.service == pytest.approx(3 * 0.01, rel=0.01)


def test_service_is_what_the_endpoint_really_takes() -> None:
    options = ("--slow-share", "0.5", "--slow-factor", "10")
    with watched(1, 0.02, *options) as endpoint:
        for _ in range(12):
            ask(endpoint, "system", "user")
        with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/stats", timeout=30) as answer:
            busy = json.load(answer)["busy"]
        service = endpoint.window().service
    slow = round((service / 0.02 - 12) / 9)
    assert 0 < slow < 12
    # A slow call more or less would be 0.18 s.
    assert service <= busy < service + 12 * 0.02 + 0.15


def test_all_calls_alike_take_the_service_time_each() -> None:
    options = arguments(["--service-time", "0.2", "--slow-factor", "10"])
    assert planned_service(options, 50) == pytest.approx(10.0)


def test_the_middle_leaves_begin_and_end_out() -> None:
    begin, middle, end = [0.0, 10.0], [20.0 + n for n in range(9)], [100.0, 200.0]
    assert middle_rate([*begin, *middle, *end]) == pytest.approx(1.0)
    assert middle_rate([1.0]) == 0.0


def test_a_commands_children_count_and_what_it_leaves_is_ended(tmp_path: Path) -> None:
    burn = "import time; end = time.process_time() + 1.2\nwhile time.process_time() < end: pass"
    script = (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {burn!r}])\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)\n"
        "import time; time.sleep(1)"
    )
    found = watch([sys.executable, "-c", script], tmp_path / "log", 300, memory=True)
    assert found.cpu > 0.6
    assert found.seconds > 1.0
    assert found.peaks_of("time.sleep(600)")[0].pss > 1
    assert not psutil.pid_exists(int((tmp_path / "log").read_text()))


def test_a_command_that_fails_or_hangs_says_so(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="exit status 3: the last words"):
        watch([sys.executable, "-c", "print('the last words'); raise SystemExit(3)"], tmp_path / "log", 300)
    with pytest.raises(CommandFailed, match="not at its end after 1 s"):
        watch([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "log", 1)


def test_so_many_workers_make_so_many_samples() -> None:
    assert workers_until_saturation(500 * 20 / 60) == pytest.approx(500)


def test_a_memory_that_has_seen_a_lot_is_one(tmp_path: Path) -> None:
    has_seen(tmp_path / "memory", 50)
    shelves = load_memory(tmp_path / "memory").shelves.values()
    assert sum(len(shelf.seen) for shelf in shelves) == 50
    assert all(not shelf.buffer for shelf in shelves)


def test_seeds_are_different_and_as_many_as_wanted(tmp_path: Path) -> None:
    seeds = read(write_seeds(tmp_path / "seeds.jsonl", 5))
    assert len({seed.id for seed in seeds}) == 5


def test_fixed_calls_are_the_methods_whatever_the_model_says() -> None:
    seed = a_seed("0", TURNS)
    expected = requests_of(seed, CONFLICTS)
    driver = Driver(Script({"tasks": {"active_main_task": "something else"}}))
    samples = driver.run(fixed(seed, CONFLICTS))
    assert driver.requests == expected
    assert len(expected) == 2 + 2 * 6
    assert {(request.temperature, request.max_tokens <= ANSWER_TOKENS) for request in expected} == {(0.0, True)}
    assert [sample.label for sample in samples] == [Label.ER, Label.IC]
    assert len(driver.of_type(RecordTrajectory)) == 1


def test_peers_are_asked_our_texts_in_the_same_words_by_either_way(tmp_path: Path) -> None:
    seeds = tmp_path / "seeds.jsonl"
    messages = [{"role": role, "content": text} for turn in TURNS for role, text in zip(ROLES, turn, strict=True)]
    seeds.write_text(json.dumps({"language": "en", "messages": messages}) + "\n")
    made = Job.read(str(job(Size(1, seeds, tmp_path, 4, 0.1, 6), "http://127.0.0.1:1/v1", tmp_path)))
    row = {"text": made.texts()[0], **{call: f'{{"{call}": true}}' for call in CALLS}}
    for call in CALLS:
        rendered = jinja2.Template(made.template(call)).render(**row)
        assert rendered == made.user_message(call, row)
        assert made.jobs[call] in rendered
    assert "bedtime story" in row["text"]
    asked = [
        request.stage for request in requests_of(a_seed("0", TURNS), Method(labels=(Label.IC,), task_filter=False))
    ]
    assert asked == list(CALLS)


def test_ahead_means_ahead_of_every_peer_in_everything(tmp_path: Path) -> None:
    sizes = [Size(n, tmp_path, tmp_path, 64, 0.2, 80) for n in (400, 2000)]
    mine = [Figures(10.0, 30.0, 0.003), Figures(52.0, 70.0, 0.002)]
    slower = [Figures(20.0, 25.0, 0.004), Figures(50.0, 80.0, 0.003)]
    found = verdicts(sizes, {"synuc": mine, "slower": slower, "broken": "no such package"})
    assert [row.verdict for row in found] == ["PASS", "PASS", "PASS", "PASS", "FAIL"]
    leaner = [Figures(20.0, 25.0, 0.002), slower[1]]
    assert [row.verdict for row in verdicts(sizes, {"synuc": mine, "leaner": leaner})] == [
        "PASS",
        "PASS",
        "FAIL",
        "PASS",
    ]


def test_pipeline_over_stages_is_a_ratio_of_times() -> None:
    ours, theirs = Side([0.0, 10.0], 100, 80, 5), Side([5.0, 19.0], 100, 10, 5)
    assert rows(2, ours, theirs)[-1].measured == "1.40"
    assert rows(2, ours, theirs)[-1].verdict == "FAIL"
    assert "12.00 seeds/min, 80.0%" in rows(2, ours, theirs)[0].measured
