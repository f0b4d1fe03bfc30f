"""Budgets: what counts as spent, when a stream has come to rest, and what the command says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.memory import Memory
from pipelines.budget import Closing, Purse
from pipelines.run_folder import RunFolder
from synuc import prompts
from synuc.cli import main
from synuc.config import RunConfig, load, method_snapshot
from synuc.layers import ConfigError
from tests.scripted import a_seed
from tests.standin import Running

Standin = Callable[..., Running]


def config(budget: dict[str, float], price: dict[str, float] | None = None, url: str = "http://x") -> RunConfig:
    return RunConfig.model_validate(
        {
            "seeds": {"paths": ["chats"]},
            "engine": {"kind": "openai", "model": "standin", "base_url": url, "price": price or {}},
            "budget": budget,
        }
    )


def call(seed_id: str, prompt: int, completion: int, cost: float, **fields: Any) -> dict[str, Any]:
    tokens = {"prompt_tokens": prompt, "cached_tokens": prompt // 2, "completion_tokens": completion, "cost": cost}
    return {"seed_id": seed_id, "key": seed_id, "stage": "match", "role": "generator", "attempt": 0, **tokens, **fields}


def a_folder(path: Path, *parts: list[dict[str, Any]]) -> RunFolder:
    folder = RunFolder(path)
    folder.path.mkdir()
    for part in parts:
        folder.write_part("calls", part)
    return folder


def test_a_purse_begins_with_the_ledger_of_earlier_starts(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "r", [call("a", 100, 10, 0.5), call("b", 50, 5, 0.25)], [call("c", 30, 5, 0.125)])
    assert folder.spent() == (0.875, 200)
    purse = Purse(config({"usd": 1.0, "tokens": 250}, {"prompt": 1.0}), folder)
    before = purse.empty
    purse.pay([call("d", 10, 1, 0.125)])
    assert (before, purse.empty) == (False, True)
    assert (purse.usd, purse.tokens) == (1.0, 211)


def test_a_run_without_a_ledger_has_spent_nothing(tmp_path: Path) -> None:
    assert RunFolder(tmp_path / "none").spent() == (0.0, 0)
    assert not Purse(config({"tokens": 1}), RunFolder(tmp_path / "none")).empty


@pytest.mark.parametrize(
    ("budget", "empty"), [({"tokens": 110}, True), ({"tokens": 111}, False), ({"usd": 0.5}, True), ({}, False)]
)
def test_a_bound_is_reached_when_it_is_met(tmp_path: Path, budget: dict[str, float], empty: bool) -> None:
    folder = a_folder(tmp_path / "r", [call("a", 100, 10, 0.5)])
    assert Purse(config(budget, {"completion": 1.0}), folder).empty is empty


def test_money_without_prices_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"budget\.usd: no engine has a price"):
        Purse(config({"usd": 1.0}), RunFolder(tmp_path / "r"))
    mixed = config({"usd": 1.0}).model_dump()
    mixed["roles"] = {"verifier": {**mixed["engine"], "model": "strong", "price": {"prompt": 2.0}}}
    assert Purse(RunConfig.model_validate(mixed), RunFolder(tmp_path / "r")).priced


def test_the_message_says_what_was_spent_what_is_done_and_how_to_go_on(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "r", [call("a", 1000, 234, 0.5)])
    said = str(Purse(config({"usd": 0.5}, {"prompt": 1.0}), folder).reached(40, 2000))
    assert "0.5000 of 0.5 USD, 1,234 tokens spent; 40 of 2,000 dialogues" in said
    assert "higher budget" in said
    assert "\n" not in said
    assert "USD" not in str(Purse(config({"tokens": 9}), folder).reached(40, 2000))


@pytest.mark.parametrize("value", ["budget.usd=0", "budget.tokens=-1", "budget.tokens=1.5", "budget.euro=1"])
def test_a_budget_that_is_none_is_an_error(value: str) -> None:
    with pytest.raises(ConfigError, match=r"budget\.(usd|tokens|euro)"):
        load([], ["engine.kind=openai", "engine.model=m", value])


def test_a_budget_may_change_while_a_run_is_continued() -> None:
    one, other = config({"tokens": 10}), config({"tokens": 20})
    assert method_snapshot(one, "p") == method_snapshot(other, "p")


def test_a_closed_memory_lets_nobody_begin_and_knows_who_is_at_work(tmp_path: Path) -> None:
    memory = Memory(str(tmp_path / "run"), 3, 10, 600.0)
    assert memory.begin("w1", ["a"])
    assert memory.begin("w1", ["a", "b"])
    assert memory.begin("w2", ["c"])
    assert memory.begin("w1", ["b", "d"])
    assert sorted(memory.close()) == ["b", "c", "d"]
    assert not memory.begin("w2", ["c", "e"])
    assert sorted(memory.close()) == ["b", "c", "d", "e"]


@given(st.sets(st.integers(0, 30).map(str)), st.randoms(use_true_random=False))
def test_a_stream_is_over_when_the_last_in_flight_has_come_back(in_flight: set[str], random: Any) -> None:
    closing, finished = Closing(), {"long ago"}
    back = sorted(in_flight)
    random.shuffle(back)
    for seed_id in back:
        # A memory that has restarted has forgotten some of them.
        known = {other for other in in_flight if random.random() < 0.5} if finished != {"long ago"} else in_flight
        assert not closing.over(known, finished)
        if random.random() < 0.3:
            closing.held(seed_id)
        else:
            finished.add(seed_id)
        closing.over(in_flight, finished)
    assert closing.over(set(), finished)


def test_the_command_ends_with_3_and_one_line_when_the_ledger_has_reached_the_budget(
    tmp_path: Path, standin: Standin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = standin().url
    folder = a_folder(tmp_path / "r", [call("a", 900, 100, 0.0)])
    settings = config({}, url=url)
    folder.begin(settings, method_snapshot(settings, prompts.version()))
    seeds = [a_seed("a"), a_seed("b")]
    folder.write_part("seeds", [{"id": seed.id, "seed": seed.model_dump_json()} for seed in seeds])
    folder.write_ingest({"taken": 2})
    command = ["synuc", "synthesize", "--run", str(folder.path), "--seeds", "chats"]
    command += ["--set", "engine.kind=openai", "--set", "engine.model=standin", "--set", f"engine.base_url={url}"]

    def ended(*budget: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", [*command, *budget])
        with pytest.raises(SystemExit) as exit:
            main()
        return int(exit.value.code or 0), capsys.readouterr().err

    code, said = ended("--budget-tokens", "1000")
    assert code == 3
    assert said.count("\n") == 1
    assert "1,000 of 1,000 tokens spent; 0 of 2 dialogues" in said
    assert folder.sessions()[-1]["ended"] == "budget"
    assert not folder.parts("samples")
    code, said = ended("--budget-usd", "1")
    assert code == 1
    assert "no engine has a price" in said
