"""Runs at a URL: what is put when, who may write, and what the next start finds. The store is a folder, `file://`."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from actors.journal import load_memory, open_journal
from actors.store import PAUSES, Store, mark_of
from pipelines import mirror as mirrors
from pipelines.mirror import fetched
from pipelines.run_folder import RunFolder, sample_row
from synuc.config import RunConfig, method_snapshot
from synuc.folder import Folder, RunError
from synuc.sample import Sample
from tests.runs import a_run
from tests.scripted import a_trajectory

CONFIG = RunConfig.model_validate({"engine": {"kind": "openai", "model": "m"}})
CALL = {"seed_id": "a", "key": "a", "stage": "filter", "attempt": 0, "cost": 0.0, "prompt_tokens": 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    return a_run(tmp_path_factory.mktemp("made") / "run").samples


class Machine:
    """A machine with its own cache: what it does with the run at `url`."""

    def __init__(self, url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = url
        self._cache = cache
        self._monkeypatch = monkeypatch

    def folder(self) -> RunFolder:
        """As a new process makes it."""
        self._monkeypatch.setenv("SYNUC_CACHE", str(self._cache))
        return RunFolder(self.url)


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Machine]:
    url = (tmp_path / "bucket" / "runs" / "first").as_uri()
    return lambda name: Machine(url, tmp_path / name, monkeypatch)


def bucket(machine: Machine) -> Path:
    return Path(machine.url.removeprefix("file://"))


def files(folder: Path) -> dict[str, bytes]:
    """All that isn't hidden or of the moment."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    hidden = {name for name in found if any(part.startswith(".") for part in name.split("/"))}
    return {name: path.read_bytes() for name, path in found.items() if name not in hidden | {"driver.json"}}


def begin(folder: RunFolder) -> None:
    folder.begin(CONFIG, method_snapshot(CONFIG, "prompts-1"))
    if folder.ingest() is None:
        folder.write_part("seeds", [{"id": "a", "seed": "{}"}, {"id": "b", "seed": "{}"}])
        folder.write_ingest({"taken": 2})


def call(**fields: Any) -> dict[str, Any]:
    return {**CALL, **fields}


def broken(monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], bool]) -> None:
    """The store takes no object whose name `fails`."""
    real = Store.put

    def put(self: Store, name: str, data: bytes | Path) -> Any:
        if fails(name):
            raise OSError("the store is overloaded")
        return real(self, name, data)

    monkeypatch.setattr(Store, "put", put)


def test_an_object_is_what_was_put_last(tmp_path: Path) -> None:
    store = Store((tmp_path / "at").as_uri())
    store.put("a/b.json", b"one")
    mark = store.put("a/b.json", b"three")
    assert store.get("a/b.json") == b"three"
    assert store.list() == {"a/b.json": mark}
    store.fetch("a/b.json", tmp_path / "here" / "b.json")
    assert (tmp_path / "here" / "b.json").read_bytes() == b"three"
    assert mark_of(tmp_path / "here" / "b.json") == mark
    store.delete_all("a")
    assert store.list() == {}
    with pytest.raises(FileNotFoundError):
        store.get("a/b.json")


def test_no_reader_sees_half_an_object(tmp_path: Path) -> None:
    store, over = Store((tmp_path / "at").as_uri()), threading.Event()
    sizes = (1, 3_000_000)
    store.put("x", b"0" * sizes[0])

    def write() -> None:
        for n in range(30):
            store.put("x", bytes([48 + n % 10]) * sizes[n % 2])
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not over.is_set():
        data = store.get("x")
        assert len(data) in sizes
        assert len(set(data)) == 1
        assert set(store.list()) == {"x"}
    writer.join()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense://bucket/run", "nonsense"),
        ("s3://key:hunter2@bucket/run", "environment"),
        ("abfs://box@account/run?client_secret=hunter2", "environment"),
        ("s3://bucket/run?regoin=eu-west-1&endpoint_override=127.0.0.1:1", "regoin"),
    ],
)
def test_a_bad_url_is_refused_and_no_secret_is_shown(url: str, says: str) -> None:
    with pytest.raises(RunError, match=says) as refused:
        RunFolder(url)
    assert "hunter2" not in str(refused.value)


def test_only_synthesis_runs_can_be_at_a_url() -> None:
    with pytest.raises(RunError, match="looks like a URL"):
        Folder(Path("s3://bucket/runs/eval"))


def test_a_store_that_has_answered_is_asked_again_and_one_that_has_not_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, slept = Store(tmp_path.as_uri()), list[float]()
    monkeypatch.setattr(time, "sleep", slept.append)
    answers = iter([None, None, b"good"])

    def get() -> bytes:
        if (answer := next(answers)) is None:
            raise OSError("503")
        return answer

    with pytest.raises(OSError, match="503"):
        store._tried(get)
    assert slept == []
    store.put("x", b"")
    assert store._tried(get) == b"good"
    assert slept == [PAUSES[0]]
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        store._tried(lambda: (_ for _ in ()).throw(OSError("AWS Error ACCESS_DENIED during PutObject")))
    assert slept == [PAUSES[0]]


def test_what_is_written_is_at_the_url_and_another_machine_goes_on(
    machines: Callable[[str], Machine], made: list[Sample]
) -> None:
    first = machines("one").folder()
    with first.locked():
        begin(first)
        first.write_part("calls", [call()])
        first.write_part("samples", [sample_row(made[0])])
        first.note_session(ended="interrupted")
        assert files(first.path) == files(bucket(machines("one")))
    second = machines("two").folder()
    assert second.path != first.path
    with second.locked():
        begin(second)
        assert second.finished().to_pylist() == [made[0].seed_id]
        assert second.sessions() == [{"ended": "interrupted"}]
        second.write_part("samples", [sample_row(made[1])])
    with first.locked():
        assert first.read("samples")["id"].to_pylist() == [made[0].id, made[1].id]
    assert str(first) == machines("one").url
    assert first.path.name == "first"


def test_seeds_are_there_when_all_are(machines: Callable[[str], Machine]) -> None:
    url = bucket(machines("one"))
    first = machines("one").folder()
    with first.locked():
        first.begin(CONFIG, method_snapshot(CONFIG, "prompts-1"))
        first.write_part("seeds", [{"id": "a", "seed": "{}"}])
        assert not (url / "seeds").exists()
    # Another attempt left more.
    (url / "seeds").mkdir()
    pq.write_table(first.read("seeds"), url / "seeds" / "part-000007.parquet")
    second = machines("two").folder()
    with second.locked():
        assert second.parts("seeds") == []
        begin(second)
    assert sorted(path.name for path in (url / "seeds").iterdir()) == ["ingest.json", "part-000000.parquet"]
    paths, system = second.everywhere(second.parts("seeds"))
    assert pq.read_table(paths, filesystem=system)["id"].to_pylist() == ["a", "b"]


def test_a_crash_before_the_put_is_made_up_for_by_the_next_start_here(
    machines: Callable[[str], Machine], made: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = machines("one")
    folder, order = machine.folder(), list[str]()
    with folder.locked():
        begin(folder)
        with monkeypatch.context() as patch:
            broken(patch, lambda name: name.startswith("calls"))
            with pytest.raises(OSError, match="overloaded"):
                folder.write_part("calls", [call()])
        # As the sink does at its end: what came later doesn't overtake what came before.
        with monkeypatch.context() as patch:
            broken(patch, lambda name: bool(order.append(name)))  # type: ignore[func-returns-value]
            folder.write_part("samples", [sample_row(made[0])])
        assert order == ["calls/part-000000.parquet", "samples/part-000000.parquet"]
        with monkeypatch.context() as patch:
            broken(patch, lambda name: name.startswith("calls"))
            with pytest.raises(OSError, match="overloaded"):
                folder.write_part("calls", [call(key="late")])
    assert "calls/part-000001.parquet" not in files(bucket(machine))
    folder = machine.folder()
    with folder.locked():
        assert files(bucket(machine)) == files(folder.path)
        assert sorted(folder.read("calls")["key"].to_pylist()) == ["a", "late"]


def test_a_killed_driver_is_continued_here_at_once_and_elsewhere_when_it_is_stale(
    machines: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = machines("one"), machines("two")
    killed = here.folder()
    with killed.locked():
        begin(killed)
        alive = (bucket(here) / "driver.json").read_bytes()
    (bucket(here) / "driver.json").write_bytes(alive)
    with pytest.raises(RunError, match=r"written by process \d+ on .*in \d+ s"), there.folder().locked():
        pass
    with here.folder().locked():
        pass
    old = json.loads(alive) | {"at": time.time() - mirrors.STALE_S - 1}
    (bucket(here) / "driver.json").write_text(json.dumps(old))
    with there.folder().locked():
        assert json.loads((bucket(here) / "driver.json").read_bytes())["over"] is False
    assert json.loads((bucket(here) / "driver.json").read_bytes())["over"] is True


def test_a_second_driver_is_refused_on_this_machine_too(machines: Callable[[str], Machine]) -> None:
    machine = machines("one")
    with machine.folder().locked(), pytest.raises(RunError, match=machine.url), machine.folder().locked():
        pass


def test_a_driver_that_was_taken_over_writes_no_more(
    machines: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch, made: list[Sample]
) -> None:
    monkeypatch.setattr(mirrors, "BEAT_S", 0.02)
    machine = machines("one")
    folder = machine.folder()
    with folder.locked():
        begin(folder)
        before = (bucket(machine) / "driver.json").read_bytes()
        while (bucket(machine) / "driver.json").read_bytes() == before:
            time.sleep(0.01)
        theirs = {"session": "other", "host": "elsewhere", "process": 7, "at": time.time(), "over": False}
        Store(machine.url).put("driver.json", json.dumps(theirs).encode())
        assert folder.mirror is not None
        while folder.mirror._lost is None:
            # One beat may have been under way.
            Store(machine.url).put("driver.json", json.dumps(theirs).encode())
            time.sleep(0.01)
        with pytest.raises(OSError, match="process 7 on elsewhere has taken it over") as refused:
            folder.write_part("samples", [sample_row(made[0])])
    assert refused.value.errno == errno.EBUSY
    assert json.loads((bucket(machine) / "driver.json").read_bytes()) == theirs


def test_where_another_machine_went_on_its_samples_count_and_no_call_is_lost(
    machines: Callable[[str], Machine], made: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = machines("one"), machines("two")
    folder = one.folder()
    with folder.locked():
        begin(folder)
        with monkeypatch.context() as patch:
            broken(patch, lambda name: "/part-" in name)
            for key in ("paid-1", "paid-2"):
                # Each flush fails, and leaves its files here.
                for table, row in (("calls", call(key=key)), ("samples", sample_row(made[0]))):
                    with pytest.raises(OSError, match="overloaded"):
                        folder.write_part(table, [row])
            with pytest.raises(OSError, match="overloaded"):
                folder.note_session(ended="stopped")
    for path in [*folder.path.glob("calls/*"), *folder.path.glob("samples/*")]:
        os.utime(path, (time.time() - 100, time.time() - 100))
    # The samples that are only here are twice those of a dialogue that the other machine does again.
    driver = json.loads((bucket(one) / "driver.json").read_bytes())
    (bucket(one) / "driver.json").write_text(json.dumps(driver | {"at": 0.0}))
    second = two.folder()
    with second.locked():
        second.write_part("calls", [call(key="theirs")])
        second.write_part("samples", [sample_row(made[0])])
        second.note_session(ended="finished")
    for reading in (True, False):
        folder = RunFolder.existing(one.folder().url or "") if reading else one.folder()
        if not reading:
            with folder.locked():
                pass
        assert folder.read("samples")["id"].to_pylist() == [made[0].id]
        assert sorted(folder.read("calls")["key"].to_pylist()) == ["paid-1", "paid-2", "theirs"]
        assert sorted(session["ended"] for session in folder.sessions()) == ["finished", "stopped"]
    assert files(bucket(one)) == files(folder.path)


def test_reading_fetches_what_is_new_and_leaves_a_driver_here_alone(
    machines: Callable[[str], Machine], made: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = machines("one"), machines("two")
    writer = one.folder()
    with writer.locked():
        begin(writer)
        two.folder()
        reader = RunFolder.existing(two.url)
        assert len(reader.read("samples")) == 0
        writer.write_part("samples", [sample_row(made[0])])
        journal = open_journal(writer.path, writer.url, 3, 10)
        journal.write({"do": "record", "trajectory": a_trajectory("t").model_dump(mode="json")})
        fetches = list[str]()
        real = Store.fetch

        def fetch(self: Store, name: str, target: Path) -> None:
            fetches.append(name)
            real(self, name, target)

        monkeypatch.setattr(Store, "fetch", fetch)
        reader = RunFolder.existing(two.url)
        assert len(reader.read("samples")) == 1
        assert fetches == ["samples/part-000000.parquet"]
        assert load_memory(reader.path / "memory") == journal.state
        # On the writer's machine the files are the writer's.
        one.folder()
        monkeypatch.setattr(Store, "list", None)
        assert len(RunFolder.existing(one.url).read("samples")) == 1


def test_a_run_that_was_copied_to_the_url_goes_on_there(machines: Callable[[str], Machine], tmp_path: Path) -> None:
    machine = machines("one")
    local = a_run(tmp_path / "local")
    memory = load_memory(local.folder.path / "memory")
    bucket(machine).parent.mkdir(parents=True)
    local.folder.path.rename(bucket(machine))
    folder = machine.folder()
    with folder.locked():
        assert sorted(folder.read("samples")["id"].to_pylist()) == sorted(sample.id for sample in local.samples)
        assert open_journal(folder.path, folder.url, 3, 10).state == memory
    assert load_memory(folder.path / "memory") == memory


def test_a_working_copy_is_never_emptied_because_the_url_is(machines: Callable[[str], Machine], tmp_path: Path) -> None:
    machine = machines("one")
    folder = machine.folder()
    with folder.locked():
        begin(folder)
    before = files(folder.path)
    bucket(machine).rename(tmp_path / "gone")
    with pytest.raises(RunError, match="nothing at"), machine.folder().locked():
        pass
    with pytest.raises(RunError, match="nothing at"):
        RunFolder.existing(machine.url)
    assert files(folder.path) == before


def test_what_never_was_is_said(machines: Callable[[str], Machine]) -> None:
    machine = machines("one")
    machine.folder()
    with pytest.raises(RunError, match=f"{machine.url} is no run folder"):
        RunFolder.existing(machine.url)
    with pytest.raises(RunError, match="nothing at"):
        fetched(f"{machine.url}/export")


def test_a_place_that_refuses_gives_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNUC_CACHE", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("in the way")
    url = (tmp_path / "file" / "run").as_uri()
    with pytest.raises(RunError, match=r"can't (use|read) file://"), RunFolder(url).locked():
        pass


def test_a_folder_and_a_url_are_the_same_to_who_reads(machines: Callable[[str], Machine], tmp_path: Path) -> None:
    assert fetched(str(tmp_path)) == str(tmp_path)
    machine = machines("one")
    folder = machine.folder()
    with folder.locked():
        begin(folder)
        (folder.path / "export").mkdir()
        (folder.path / "export" / "uc-data.jsonl").write_text("{}\n")
        (folder.path / "replies").mkdir()
        (folder.path / "replies" / "a.jsonl").write_text("private")
        assert folder.mirror is not None
        folder.mirror.put_folder("export")
    export = Path(fetched(f"{machine.url}/export"))
    assert (export.name, files(export)) == ("export", {"uc-data.jsonl": b"{}\n"})
    with machine.folder().locked():
        pass
    assert "replies/a.jsonl" not in files(bucket(machine))
