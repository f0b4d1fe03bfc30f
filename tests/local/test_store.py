"""Runs on a real S3 server: what is put, what kills leave, and a whole synthesis."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import ray
from pyarrow import fs
from rich.console import Console

from actors.journal import fetch_memory, load_memory
from actors.memory import start_memory
from actors.store import Store, mark_of
from cluster.connect import connected
from pipelines.mirror import fetched
from pipelines.run_folder import RunFolder
from pipelines.synthesize import synthesize
from synuc.folder import RunError
from tests.bench.ours import synthesis
from tests.local.test_synthesize import TWO_LABELS, config, dialogues
from tests.scripted import a_trajectory
from tests.standin import Running

MOTO = Path(__file__).parents[2] / ".venv-s3/bin/moto_server"
pytestmark = pytest.mark.skipif(not MOTO.exists(), reason="no S3 server: `make servers` installs it")
BUCKET = "bucket"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The endpoint of an S3 server with one bucket; the environment has its address and keys, as a user's would."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": "us-east-1"}
    with (
        pytest.MonkeyPatch.context() as patch,
        subprocess.Popen(
            [MOTO, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as server,
    ):
        for name, value in {**keys, "AWS_ENDPOINT_URL_S3": url, "AWS_EC2_METADATA_DISABLED": "true"}.items():
            patch.setenv(name, value)
        try:
            _wait_for(port)
            server_files().create_dir(BUCKET)
            yield url
        finally:
            server.terminate()


def server_files() -> fs.FileSystem:
    """All of the server: unlike this one, a file system that is made without a URL doesn't look for its address."""
    return fs.FileSystem.from_uri(f"s3://{BUCKET}?allow_bucket_creation=true")[0]


def _wait_for(port: int) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the S3 server doesn't start")


@pytest.fixture(scope="module")
def ray_beside_s3(s3: str) -> Iterator[None]:
    """Ray, whose processes have the keys."""
    with connected(None):
        yield


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SYNUC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def at(name: str) -> str:
    return f"s3://{BUCKET}/runs/{name}"


def test_objects_come_back_as_they_were_put(s3: str, tmp_path: Path) -> None:
    store = Store(at("objects"))
    large = tmp_path / "large"
    large.write_bytes(os.urandom(12 * 2**20))  # more than one part of a multipart upload
    marks = {"a/large": store.put("a/large", large), "a/empty": store.put("a/empty", b""), "b": store.put("b", b"x")}
    assert store.list() == marks
    store.fetch("a/large", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == large.read_bytes()
    assert mark_of(tmp_path / "again") == marks["a/large"]
    assert store.get("a/empty") == b""
    store.delete("b")
    store.delete_all("a")
    assert store.list() == {}
    with pytest.raises(FileNotFoundError):
        store.get("b")


def test_a_bucket_that_is_not_there_is_one_clear_error(s3: str, cache: Path) -> None:
    started = time.monotonic()
    with (
        pytest.raises(RunError, match=r"can't use s3://nobucket/run.*NO_SUCH_BUCKET"),
        RunFolder("s3://nobucket/run").locked(),
    ):
        pass
    with pytest.raises(RunError, match="is no run folder"):
        RunFolder.existing("s3://nobucket/run")
    assert time.monotonic() - started < 10


def test_a_server_that_is_not_there_is_one_clear_error(cache: Path) -> None:
    url = "s3://bucket/run?endpoint_override=127.0.0.1:9&scheme=http"
    with pytest.raises(RunError, match=r"can't use s3://bucket/run"), RunFolder(url).locked():
        pass


@pytest.mark.usefixtures("ray_beside_s3")
def test_the_memory_has_what_it_acknowledged_at_the_url(s3: str, cache: Path, tmp_path: Path) -> None:
    url, here = at("memory"), ray.get_runtime_context().get_node_id()
    run = RunFolder(url).path
    memory = start_memory(run, 3, 10_000, 600.0, here, url)
    acknowledged: list[str] = []

    def write(worker: int) -> None:
        for n in range(40):
            trajectory = a_trajectory(f"{worker}-{n}")
            ray.get(memory.record.remote(trajectory))
            acknowledged.append(trajectory.id)

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        time.sleep(1.0)
        before = set(acknowledged)
        fetch_memory(Store(url), tmp_path / "elsewhere")
        assert before <= {t.id for shelf in load_memory(tmp_path / "elsewhere").shelves.values() for t in shelf.buffer}
        ray.kill(memory, no_restart=False)
    for thread in threads:
        thread.join()
    ray.kill(memory)
    fetch_memory(Store(url), tmp_path / "elsewhere")
    recorded = [t.id for shelf in load_memory(tmp_path / "elsewhere").shelves.values() for t in shelf.buffer]
    assert sorted(recorded) == sorted(acknowledged)
    assert len(set(recorded)) == 320


@pytest.mark.usefixtures("ray_beside_s3")
def test_a_whole_run_is_at_the_url(
    s3: str, cache: Path, tmp_path: Path, standin: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(dialogues(tmp_path / "seeds.jsonl", 12), standin().url, task_filter=False, alpha=1.0)
    assert synthesize(settings, at("whole"), Console(quiet=True))
    started = time.monotonic()
    assert not synthesize(settings, at("whole"), Console(quiet=True))
    assert time.monotonic() - started < 2
    names = Store(at("whole")).list()
    assert {name.split("/")[0] for name in names} == {
        *("config.yaml", "method.json", "sessions.jsonl", "driver.json"),
        *("seeds", "samples", "calls", "memory"),
    }
    ids = pq.read_table(f"{BUCKET}/runs/whole/samples", filesystem=server_files())["id"].to_pylist()
    assert Counter(Counter(ids).values()) == {1: 36}
    # Another machine has all of it.
    monkeypatch.setenv("SYNUC_CACHE", str(tmp_path / "another"))
    assert len(RunFolder.existing(at("whole")).read("samples")) == 36
    assert not synthesize(settings, at("whole"), Console(quiet=True))


def test_a_killed_driver_is_continued_by_another_machine(
    s3: str, tmp_path: Path, standin: Callable[..., Running]
) -> None:
    seeds, url = dialogues(tmp_path / "seeds.jsonl", 60), at("killed")
    endpoint = standin("--service-time", "0.2", "--slots", "16")
    command = synthesis(url, seeds, endpoint.url, 64, TWO_LABELS)
    one, two = ({**os.environ, "SYNUC_CACHE": str(tmp_path / name)} for name in ("one", "two"))
    with subprocess.Popen(command, env=one, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not Store(url).list("samples"):
            time.sleep(0.2)
        refused = subprocess.run(command, env=two, capture_output=True, text=True, timeout=120)
        assert refused.returncode == 1
        assert f"{url} is being written by process {process.pid}" in refused.stderr
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    # Rather than waiting until its last sign of life is old.
    store = Store(url)
    store.put("driver.json", store.get("driver.json").replace(b'"at": ', b'"at": -'))
    before = set(pq.read_table(f"{BUCKET}/runs/killed/samples", filesystem=server_files())["id"].to_pylist())
    assert 0 < len(before) < 120
    subprocess.run(command, env=two, check=True, capture_output=True, timeout=300)
    ids = pq.read_table(f"{BUCKET}/runs/killed/samples", filesystem=server_files())["id"].to_pylist()
    assert Counter(Counter(ids).values()) == {1: 120}
    assert before <= set(ids)
    # And the first machine sees it, too.
    subprocess.run(command, env=one, check=True, capture_output=True, timeout=120)
    shown = [sys.executable, "-m", "synuc.cli", "report", url, "--json"]
    report = subprocess.run(shown, env=one, check=True, capture_output=True, text=True, timeout=120)
    assert '"adds_up": true' in report.stdout


@pytest.mark.usefixtures("ray_beside_s3")
def test_an_export_is_put_and_fetched(
    s3: str, cache: Path, tmp_path: Path, standin: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(dialogues(tmp_path / "seeds.jsonl", 4), standin().url, task_filter=False, alpha=1.0)
    synthesize(settings, at("exported"), Console(quiet=True))
    done = subprocess.run(
        [sys.executable, "-m", "synuc.cli", "export", at("exported")], capture_output=True, text=True, timeout=120
    )
    assert f"export/ at {at('exported')}" in done.stdout
    monkeypatch.setenv("SYNUC_CACHE", str(tmp_path / "another"))
    export = Path(fetched(f"{at('exported')}/export"))
    assert (export / "uc-data-sft.parquet").exists()
