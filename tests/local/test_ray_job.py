"""The README's `ray job submit` line, on a cluster of its own that `ray start --head` made."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.local.test_synthesize import counts, dialogues
from tests.standin import Running

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
KEY = "key-of-the-nodes"
OPEN = {"RAY_AUTH_MODE": "disabled"}
"""Else a cluster asks for the token of a user who has one."""


def free_ports(number: int) -> list[int]:
    """Different ports that nothing listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="module")
def head() -> Iterator[str]:
    """A cluster of one node on loopback, apart from any other Ray of this machine; yields its dashboard's address."""
    gcs, dashboard, client, agent, grpc, metrics = free_ports(6)
    # Sockets are made under it, and their paths may have few characters.
    folder = tempfile.mkdtemp(prefix="ray-")
    command = [str(BIN / "ray"), "start", "--head", "--block", "--disable-usage-stats", "--num-cpus=2"]
    command += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--temp-dir={folder}"]
    command += [f"--port={gcs}", f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}"]
    command += [f"--dashboard-agent-listen-port={agent}", f"--dashboard-agent-grpc-port={grpc}"]
    command += [f"--metrics-export-port={metrics}", "--min-worker-port=0", "--max-worker-port=0"]
    command += [f"--object-store-memory={256 * 1024 * 1024}"]
    # What the images set: the environment on PATH, and the key.
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OPENAI_API_KEY": KEY}
    environment.pop("RAY_ADDRESS", None)
    environment |= OPEN
    with (Path(folder) / "head.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until_it_takes_jobs(f"http://127.0.0.1:{dashboard}", process, Path(log.name))
        yield f"http://127.0.0.1:{dashboard}"
    finally:
        end(process)
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_it_takes_jobs(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Returns when the dashboard answers about jobs."""
    until = time.monotonic() + 180
    while process.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{address}/api/jobs/", timeout=5) as answer:
                json.load(answer)
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"the cluster didn't start:\n{log.read_text()}")


def end(process: subprocess.Popen[bytes]) -> None:
    """End this cluster only: `ray stop` would end every Ray of the machine."""
    theirs = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(theirs, timeout=10)
    for child in alive:
        child.kill()


def submit(address: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The README's line from the root of the checkout, without any key."""
    command = [str(BIN / "ray"), "job", "submit", "--address", address, "--working-dir", ".", "--", *words]
    environment = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "OPENAI_API_KEY")}
    return subprocess.run(
        command, cwd=ROOT, env=environment | OPEN, capture_output=True, text=True, timeout=400, check=False
    )


def test_the_line_of_the_readme_synthesises_on_a_cluster(
    tmp_path: Path, standin: Callable[..., Running], head: str
) -> None:
    seeds, run = dialogues(tmp_path / "seeds.jsonl", 12), tmp_path / "run"
    url = standin("--key", KEY).url
    line = ["synuc", "synthesize", "--config", "configs/endpoint.yaml", "--seeds", str(seeds), "--run", str(run)]
    for value in (
        f"engine.base_url={url}",
        "engine.model=standin",
        "seeds.languages=[]",
        "method.task_filter=false",
        "method.alpha=0",
    ):
        line += ["--set", value]
    first = submit(head, *line)
    assert first.returncode == 0, first.stdout + first.stderr
    ids, outcomes = counts(run)
    assert len(ids) == 24
    assert set(ids.values()) == {1}
    assert outcomes["failed"] == 0

    again = submit(head, *line)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "Nothing left to do" in again.stdout

    # The code is that of the working directory, not that of the installation.
    where = submit(head, "python", "-c", "import pipelines.run_folder as room; print(room.__file__)")
    assert "working_dir_files" in where.stdout, where.stdout + where.stderr


def test_a_run_that_can_not_begin_fails_its_job_with_the_message(tmp_path: Path, head: str) -> None:
    failed = submit(head, "synuc", "synthesize", "--config", "configs/none.yaml", "--run", str(tmp_path / "run"))
    assert failed.returncode != 0
    assert "configs/none.yaml: no such file" in failed.stdout + failed.stderr
