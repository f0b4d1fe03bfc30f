"""The files of a batch engine: what is known from them alone, and what a run makes of the engine's settings."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from actors.batch_files import BatchFolder, request_line
from pipelines.batches import LEASE_S, announce, lease_s, waited_for, with_folders
from pipelines.progress import Progress
from pipelines.trial import try_out
from synuc.config import BatchEngine, RunConfig, load
from synuc.folder import RunError
from synuc.layers import ConfigError

IDS = [f"{n:032x}" for n in range(6)]
CONFIGS = Path(__file__).parents[2] / "configs"


def folder(path: Path, most: int = 100, size: int = 10**6) -> BatchFolder:
    made = BatchFolder(path, most, size)
    made.load()
    return made


def read(files: BatchFolder) -> None:
    while lines := files.lines(2):
        for line in lines:
            files.take(line, bool(line.answer and line.answer["response"]))


def known(files: BatchFolder) -> dict[str, Any]:
    return {
        "answered": set(files.answered),
        "open": {id for id in IDS if files.is_open(id)},
        "lost": +files.lost,
        "useless": (files.unasked, files.repeated, files.unreadable),
        "waves": [(wave.name, wave.requests, wave.open) for wave in files.unanswered()],
    }


steps = st.lists(
    st.tuples(st.just("ask"), st.sets(st.sampled_from(IDS), min_size=1))
    | st.tuples(st.sampled_from(["answer", "lose"]), st.sampled_from(IDS)),
    max_size=12,
)


@settings(max_examples=60)
@given(steps=steps)
def test_what_is_known_follows_from_the_files(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place)
        live = folder(path)
        for number, (do, what) in enumerate(steps):
            if do == "ask":
                new = {id for id in what if not live.is_open(id) and id not in live.answered}
                live.write({id: request_line(id, {}) for id in sorted(new)})
                continue
            if not live.is_open(what):
                continue
            line = {"custom_id": what, "response": {"status_code": 200} if do == "answer" else None}
            (path / f"{number:03d}.answers.jsonl").write_text(json.dumps(line) + "\n")
            read(live)
        later = folder(path)
        read(later)
        assert known(later) == known(live)
        assert later.answered.keys().isdisjoint(known(later)["open"])


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=20), most=st.integers(1, 5), size=st.integers(1, 600))
def test_every_request_is_in_one_file_of_bounded_size(sizes: list[int], most: int, size: int) -> None:
    requests = {f"{n:032x}": request_line(f"{n:032x}", {"x": "y" * extra}) for n, extra in enumerate(sizes)}
    with tempfile.TemporaryDirectory() as place:
        waves = folder(Path(place), most, size).write(requests)
        lines = [wave.path.read_text().splitlines(keepends=True) for wave in waves]
        assert [line for part in lines for line in part] == list(requests.values())
        for part in lines:
            assert 1 <= len(part) <= most
            assert len(part) == 1 or sum(map(len, part)) <= size


def test_an_answer_is_read_from_where_it_is(tmp_path: Path) -> None:
    files = folder(tmp_path)
    files.write({id: request_line(id, {}) for id in IDS})
    lines = [
        json.dumps({"custom_id": id, "response": {"body": "é" * n}}, ensure_ascii=False) for n, id in enumerate(IDS)
    ]
    (tmp_path / "a.answers.jsonl").write_text("\n" + "\n\n".join(lines) + "\n", "utf-8")
    read(files)
    assert [len(files.answer(id)["response"]["body"]) for id in IDS] == list(range(6))
    assert not files.unanswered()
    assert files.unreadable == 0


def batch(**fields: Any) -> dict[str, Any]:
    return {"kind": "batch", "model": "some/model", **fields}


def test_every_engine_of_batch_files_has_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    roles = {
        "verifier": {"kind": "openai", "model": "g"},
        "curator": batch(model="other", folder="mine", base_url="http://a/v1"),
    }
    made = with_folders(RunConfig.model_validate({"engine": batch(), "roles": roles}), tmp_path)
    generator, verifier, curator = (made.engine_of(role) for role in ("generator", "verifier", "curator"))
    assert isinstance(generator, BatchEngine)
    assert generator.folder == tmp_path / "batches" / "some-model"
    assert verifier.kind == "openai"
    assert isinstance(curator, BatchEngine)
    assert curator.folder == tmp_path / "mine"
    out = io.StringIO()
    announce(made, Console(width=200, file=out))
    ours, theirs = out.getvalue().splitlines()
    assert "put the answers there as *.answers.jsonl" in ours
    assert "http://a/v1 answers them" in theirs


def test_one_engine_for_all_roles_has_one_folder(tmp_path: Path) -> None:
    made = with_folders(RunConfig.model_validate({"engine": batch()}), tmp_path)
    assert len(made.engines()) == 1


def test_two_engines_do_not_share_a_folder(tmp_path: Path) -> None:
    config = RunConfig.model_validate({"engine": batch(), "roles": {"verifier": batch(extra_body={"think": True})}})
    with pytest.raises(ConfigError, match="name another `folder`"):
        with_folders(config, tmp_path)


def test_an_update_by_batch_may_take_as_long_as_one(tmp_path: Path) -> None:
    assert lease_s(RunConfig.model_validate({"engine": batch()})) == LEASE_S
    roles = {"curator": {"kind": "openai", "model": "g"}}
    assert lease_s(RunConfig.model_validate({"engine": batch(), "roles": roles, "cluster": {"lease_s": 5}})) == 5


def test_what_is_waited_for_is_shown(tmp_path: Path) -> None:
    config = with_folders(RunConfig.model_validate({"engine": batch()}), tmp_path)
    assert waited_for(config) == []
    engine = config.engine_of("generator")
    assert isinstance(engine, BatchEngine)
    assert engine.folder
    engine.folder.mkdir(parents=True)
    files = folder(engine.folder)
    files.write({id: request_line(id, {}) for id in IDS})
    files.tell()
    out = io.StringIO()
    with Progress(Console(file=out, width=200), 10, 0, lambda: waited_for(config)) as progress:
        progress._printed -= 60
        progress.show()
    assert out.getvalue().splitlines()[1].startswith("wave-000001: 6 requests, 0 answered, waiting since")


def test_an_estimate_by_batch_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"engine\.kind=openai"):
        try_out(RunConfig.model_validate({"engine": batch()}), tmp_path / "run", 20, Console(quiet=True))


def test_the_packaged_settings_load_in_both_modes() -> None:
    engine = load([CONFIGS / "batch.yaml"]).engine
    assert isinstance(engine, BatchEngine)
    assert engine.base_url
    engine = load([CONFIGS / "batch.yaml"], ["engine.base_url=null"]).engine
    assert isinstance(engine, BatchEngine)
    assert engine.base_url is None
