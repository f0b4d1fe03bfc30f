"""Every evaluation as a Ray job against a stand-in endpoint: what it leaves behind, and how it goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from eval import jobs
from eval.config import EvalRun, Settings, engine_of
from eval.driver import EvaluationStopped, evaluate
from eval.folder import EvalFolder
from eval.jobs import Job
from eval.protocol import Item
from synuc.folder import RunError
from synuc.problem import Problem
from synuc.types import LLMRequest, Spoken
from tests.standin import Running, running

DATA = Path(__file__).parents[1] / "data"
BENCH = [str(DATA / "uc_bench.jsonl")]

pytestmark = pytest.mark.usefixtures("ray_running")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Running]:
    with running("--service-time", "0.005", "--booleans", "random") as standin:
        yield standin


@pytest.fixture(scope="module")
def model(endpoint: Running) -> str:
    return f"standin@{endpoint.url}"


def job(folder: Path, **settings: Any) -> Job:
    given = Settings.model_validate({"judge": {"give_up_after_s": 2}, "engine": {"give_up_after_s": 2}, **settings})
    return Job(["synuc", "eval"], given, folder, Console())


def some_items(path: Path, ids: list[str]) -> list[str]:
    rows = [json.loads(line) for line in (DATA / "uc_bench.jsonl").read_text("utf-8").splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row["id"] in ids), "utf-8")
    return [str(path)]


@pytest.fixture(scope="module")
def finished(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two finished `uc` runs, of the trained and of the zero-shot prompt."""
    home = tmp_path_factory.mktemp("uc")
    jobs.uc(job(home / "trained"), model, None, BENCH, "trained", "reasoned")
    jobs.uc(job(home / "zero"), model, None, BENCH, "zero_shot", "reasoned")
    return home / "trained", home / "zero"


def test_a_run_keeps_every_prompt_answer_and_token(finished: tuple[Path, Path]) -> None:
    folder = EvalFolder.existing(finished[1], "uc")
    assert len(folder.items()) == len(folder.results()) == 36
    answers, calls = list(folder.answers()), list(folder.calls())
    assert {answer["item"] for answer in answers} == {item["id"] for item in folder.items()}
    assert all("# Follow-up" in answer["messages"][0]["content"] for answer in answers)
    assert sum(call["prompt_tokens"] for call in calls) > 36 * 300
    assert folder.metrics["overall"]["n"] == 36
    assert folder.metrics["kinds"] == {"unparseable": 0, "refusal": 0, "cut_off": 0, "failed": 0}


def test_a_finished_run_asks_nothing_again(
    finished: tuple[Path, Path], endpoint: Running, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, figures = endpoint.stats()["requests"], EvalFolder(finished[1]).metrics
    jobs.uc(job(finished[1]), model, None, BENCH, "zero_shot", "reasoned")
    assert "Nothing left to ask" in capsys.readouterr().out
    assert endpoint.stats()["requests"] == asked
    assert EvalFolder(finished[1]).metrics == figures


def test_other_settings_are_refused_with_their_names(finished: tuple[Path, Path], model: str) -> None:
    with pytest.raises(RunError, match="retention: partial -> omit"):
        jobs.uc(job(finished[1], retention="omit"), model, None, BENCH, "zero_shot", "reasoned")


def test_a_stopped_run_goes_on_where_it_was(model: str, endpoint: Running, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        jobs.response(job(folder), model, model, BENCH)
    expected = EvalFolder(whole).metrics
    # As a killed process leaves it: some results, some answers of another item, a line that broke off.
    lines = (broken / "results.jsonl").read_text("utf-8").splitlines(keepends=True)
    (broken / "results.jsonl").write_text("".join(lines[:5]) + lines[5][:30], "utf-8")
    (broken / "metrics.json").unlink()
    asked = endpoint.stats()["requests"]
    jobs.response(job(broken), model, model, BENCH)
    # The preflight asks once; every answer was there.
    assert endpoint.stats()["requests"] == asked + 1
    assert EvalFolder(broken).metrics == expected
    assert len(EvalFolder(broken).results()) == 12


def test_only_what_failed_is_tried_again(model: str, endpoint: Running, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (DATA / "uc_bench.jsonl").read_text("utf-8").splitlines()[:6]]
    rows[2]["follow_up"] += " TRICK_TOO_LONG"
    (tmp_path / "bench.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    folder = EvalFolder(tmp_path / "run")
    for start in range(2):
        before = endpoint.stats()["requests"]
        jobs.uc(job(folder.path), model, None, [str(tmp_path / "bench.jsonl")], "trained", "reasoned")
        # The figures are those of the results: what was added to older ones is gone.
        assert "states" not in folder.metrics
        folder.write_metrics({**folder.metrics, "states": {}})
        failed = [result for result in folder.results() if result.kind]
        assert [(result.id, result.kind) for result in failed] == [(rows[2]["id"], "context_length")]
        assert folder.metrics["kinds"]["failed"] == 1
        assert endpoint.stats()["requests"] - before == (1 + 6 if start == 0 else 1 + 1)


@dataclass(frozen=True)
class Deadly:
    """Asks about an item, and ends the process of its worker at those that say so (once, if there is a `marker`)."""

    marker: str = ""
    name = "deadly"

    def snapshot(self) -> dict[str, Any]:
        return {}

    def program(self, item: Item) -> Generator[Any, Any, dict[str, Any]]:
        if item["deadly"] and not (self.marker and os.path.exists(self.marker)):
            if self.marker:
                Path(self.marker).touch()
            os._exit(1)
        messages = ({"role": "user", "content": f"About {item['id']}."},)
        said: Spoken = yield LLMRequest("ask", "model", item["id"], messages, Spoken, 20)
        return {"said": said.text}

    def figures(self, items: Any, results: Any) -> dict[str, Any]:
        return {"kinds": {result.id: result.kind for result in results}}


def deadly_run(model: str, path: Path, deadly: list[bool], marker: str = "") -> dict[str, Any]:
    given = Settings.model_validate({"engine": {"give_up_after_s": 2}})
    run = EvalRun(command=(), settings=given, engines={"model": engine_of(model, given.engine)})
    items = [{"id": f"{at}", "deadly": one} for at, one in enumerate(deadly)]
    return evaluate(Deadly(marker), items, run, path, Console())


def test_a_worker_that_dies_costs_no_item(model: str, tmp_path: Path) -> None:
    figures = deadly_run(model, tmp_path / "run", [True] + [False] * 5, str(tmp_path / "marker"))
    assert figures == {"kinds": {str(at): "" for at in range(6)}}
    assert (tmp_path / "marker").exists()


def test_an_item_that_kills_its_worker_is_given_up_alone(model: str, tmp_path: Path) -> None:
    figures = deadly_run(model, tmp_path / "run", [False, True, False])
    assert figures == {"kinds": {"0": "", "1": "crashed", "2": ""}}


def test_workers_that_die_of_everything_stop_the_run(model: str, tmp_path: Path) -> None:
    with pytest.raises(EvaluationStopped, match="5 engines in a row died without finishing an item"):
        deadly_run(model, tmp_path / "run", [True] * 8)
    assert {result.kind for result in EvalFolder(tmp_path / "run").results()} <= {"crashed"}
    with pytest.raises(RunError, match="is not finished; give its command again"):
        EvalFolder.existing(tmp_path / "run")


def test_the_label_alone_with_probabilities(model: str, tmp_path: Path) -> None:
    for prompt in ("trained", "zero_shot"):
        jobs.uc(job(tmp_path / prompt), model, None, BENCH, prompt, "label")
        folder = EvalFolder(tmp_path / prompt)
        for result in folder.results():
            assert result.value is not None
            assert sum(result.value["probabilities"].values()) == pytest.approx(1)
            assert result.value["predicted"] == max(
                result.value["probabilities"], key=result.value["probabilities"].get
            )
        assert folder.metrics["calibration"]["n"] == 36


def test_an_endpoint_that_goes_away_stops_with_what_to_do(tmp_path: Path) -> None:
    with running("--service-time", "0.005") as gone:
        run = job(tmp_path / "run")
        jobs.uc(run, f"standin@{gone.url}", None, some_items(tmp_path / "a.jsonl", ["wc-001"]), "trained", "reasoned")
    (run.folder / "results.jsonl").unlink()
    (run.folder / "answers.jsonl").unlink()
    with pytest.raises(Exception, match="unreachable or failing") as caught:
        jobs.uc(run, f"standin@{gone.url}", None, some_items(tmp_path / "a.jsonl", ["wc-001"]), "trained", "reasoned")
    assert not isinstance(caught.value, EvaluationStopped)  # the preflight says so, before Ray asks anybody


def test_the_judges_of_reasoning(finished: tuple[Path, Path], model: str, tmp_path: Path) -> None:
    first, second = finished
    jobs.rationale(job(tmp_path / "rationale"), first, model)
    figures = EvalFolder(tmp_path / "rationale").metrics
    assert figures["overall"]["n"] == 12
    human = tmp_path / "human.csv"
    ids = [item["id"] for item in EvalFolder(first).items() if item["label"] == "IC"]
    human.write_text("id,rater,verdict\n" + "".join(f"{id},{rater},win\n" for id in ids for rater in "ab"), "utf-8")
    jobs.pairwise(job(tmp_path / "pairwise"), first, second, model, "both", human)
    figures = EvalFolder(tmp_path / "pairwise").metrics
    assert figures["overall"]["n"] == figures["human"]["n"] == 12
    assert len(list(EvalFolder(tmp_path / "pairwise").answers())) == 24


def test_the_verifier(model: str, tmp_path: Path) -> None:
    jobs.verifier(job(tmp_path / "run"), model, some_items(tmp_path / "bench.jsonl", ["wc-001", "wc-002", "sg-001"]))
    figures = EvalFolder(tmp_path / "run").metrics
    assert sum(cell["n"] for row in figures["acceptance"].values() for cell in row.values()) == 9
    assert {call["role"] for call in EvalFolder(tmp_path / "run").calls()} == {"generator", "verifier"}


def test_coninstruct_from_seeds_to_its_three_tasks(model: str, tmp_path: Path) -> None:
    cases = DATA / "coninstruct_cases.jsonl"
    jobs.coninstruct(job(tmp_path / "detect"), model, None, cases, "detect", False)
    assert EvalFolder(tmp_path / "detect").metrics["failed"] == 0
    jobs.coninstruct(job(tmp_path / "resolve"), model, model, cases, "resolve", True)
    groups = EvalFolder(tmp_path / "resolve").metrics["groups"]
    assert sum(group["n"] for group in groups.values()) == 36
    jobs.coninstruct(job(tmp_path / "priority"), model, model, cases, "priority", False)
    assert EvalFolder(tmp_path / "priority").metrics["new_later"]["CC"]["n"] == 6
    jobs.coninstruct_build(
        job(tmp_path / "build"), model, model, DATA / "coninstruct_seeds.jsonl", tmp_path / "cases.jsonl"
    )
    assert EvalFolder(tmp_path / "build").metrics["seeds"] == 12


def test_conflictprobe_and_its_table(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs.conflictprobe(job(tmp_path / "run"), model, model, DATA / "conflictprobe", "drop", "indep")
    assert EvalFolder(tmp_path / "run").metrics["overall"]["n"] == 8
    printed = capsys.readouterr().out
    assert "present and named" in printed
    assert jobs.conflictprobe_tables(tmp_path / "run" / "results.csv").strip() in printed
    # The stand-in's sentences state no facts, so that none passes the checks.
    with pytest.raises(Problem, match="no scenario was made"):
        jobs.conflictprobe_generate(job(tmp_path / "new"), model, 1, tmp_path / "scenarios")
    assert EvalFolder(tmp_path / "new").metrics["failures"] == {"too_few_facts": 2}
