"""The report's figures against a run of known contents, and the checks that must notice what is lost or doubled."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from actors import embedded
from pipelines.report import ESTIMATE, TokenizerMissing, figures, print_report
from pipelines.report import accepted as accepted_module
from synuc.folder import RunError
from synuc.sample import Sample
from synuc.types import Label
from tests.runs import Run, a_run, of_label


@pytest.fixture(autouse=True)
def no_embedded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters instead of tokens: fast, and to be computed by hand."""

    def missing() -> None:
        raise embedded.EmbeddedModelMissing("not here")

    monkeypatch.setattr(embedded, "embedded_model", missing)


def failed_checks(run: Run) -> list[str]:
    data = figures(run.folder)
    failed = [check["what"] for check in data["checks"] if not check["ok"]]
    assert data["adds_up"] is (not failed)
    return failed


def printed(data: dict[str, Any]) -> str:
    out = io.StringIO()
    print_report(data, Console(width=80, file=out))
    return out.getvalue()


def rewrite(run: Run, samples: list[Sample]) -> None:
    for part in run.folder.parts("samples"):
        Path(part).unlink()
    run.write(samples)


def test_the_sums_add_up(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", unfinished=2)
    data = figures(run.folder)
    assert data["adds_up"]
    assert len(data["checks"]) >= 8
    assert data["dialogues"] == {
        "read": 14,
        "refused": {"too_long": 2, "language": 1},
        "taken": 11,
        "trimmed": 1,
        "finished": 9,
        "unfinished": 2,
    }
    # 0 to 5 give ER, IC and ND; 6 and 7 one that was never routed; 8 ND.
    assert data["samples"] == {"total": 21, "accepted": 11, "rejected": 5, "failed": 5}
    assert data["labels"] == {
        "ND": {"total": 7, "accepted": 5, "rejected": 1, "failed": 1},
        "ER": {"total": 6, "accepted": 3, "rejected": 2, "failed": 1},
        "IC": {"total": 6, "accepted": 3, "rejected": 2, "failed": 1},
        "-": {"total": 2, "accepted": 0, "rejected": 0, "failed": 2},
    }


def test_where_samples_end(tmp_path: Path) -> None:
    data = figures(a_run(tmp_path / "run").folder)
    assert {(row["outcome"], row["stage"], row["kind"]): row["samples"] for row in data["endings"]} == {
        ("failed", "extract", "truncated"): 3,
        ("rejected", "confidence", ""): 3,
        ("rejected", "anchor", ""): 2,
        ("failed", "filter", "unparseable"): 1,
        ("failed", "", "engine_crash"): 1,
    }
    assert sum(row["share"] for row in data["endings"]) == pytest.approx(10 / 21)
    assert [row["samples"] for row in data["endings"]] == [3, 3, 2, 1, 1]


def test_languages_schemas_and_relations(tmp_path: Path) -> None:
    data = figures(a_run(tmp_path / "run").folder)
    assert data["languages"] == {"en": {"ND": 3, "ER": 2, "IC": 2}, "zh": {"ND": 2, "ER": 1, "IC": 1}}
    assert data["speaking"] == {"key": {"total": 10, "accepted": 6, "rejected": 4, "failed": 0}}
    assert {name: row["accepted"] for name, row in data["relations"].items()} == {
        "H_E_N_E": 3,
        "H_E_N_I": 1,
        "H_I_N_E": 1,
        "H_I_N_I": 1,
    }


def test_averages_of_the_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted_module, "SAMPLES_PER_BATCH", 3)
    run = a_run(tmp_path / "run")
    data = figures(run.folder)["accepted"]
    assert data["tokenizer"] == ESTIMATE
    for key, samples in [(la.value, of_label(run.accepted(), la)) for la in Label] + [("all", run.accepted())]:
        sizes, turns = [], [len(sample.dialogue.turns) for sample in samples]
        for sample in samples:
            texts = [sample.dialogue.system, sample.follow_up or ""]
            texts += [text for turn in sample.dialogue.turns for text in (turn.user, turn.assistant)]
            sizes.append(sum((len(text) + 3) // 4 for text in texts))
        n = len(samples)
        assert data["labels"][key] == {
            "samples": n,
            "messages": pytest.approx(2 * sum(turns) / n),
            "turns": pytest.approx(sum(turns) / n),
            "max_turns": max(turns),
            "tokens": pytest.approx(sum(sizes) / n),
            "max_tokens": max(sizes),
        }


def test_usage_and_time(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", unfinished=1)
    first = run.calls[0]
    open_one = {**first, "seed_id": run.seeds[-1].id, "key": "k", "model": "org/other", "prompt_tokens": 700}
    # Asked again: the same attempt of the same stage once more; a second attempt is none.
    run.folder.write_part("calls", [first, {**first, "attempt": 1, "started": 5000.0}, open_one])
    data = figures(run.folder)
    usage = data["usage"]
    assert usage["calls"] == 21
    assert usage["failed_attempts"] == 9
    assert (usage["prompt_tokens"], usage["cached_tokens"], usage["completion_tokens"]) == (2700, 525, 210)
    assert usage["cached_share"] == pytest.approx(525 / 2700)
    assert usage["cost"] == pytest.approx(10.5)
    assert usage["seconds_per_call"] == pytest.approx(2.0)
    assert usage["repeated_calls"] == 1
    assert usage["calls_of_unfinished"] == 1
    assert [(row["stage"], row["calls"], row["failed_attempts"]) for row in usage["by_stage"]] == [
        ("filter", 12, 0),
        ("match", 9, 9),
    ]
    assert [(row["model"], row["calls"]) for row in usage["by_model"]] == [("org/strong", 20), ("org/other", 1)]
    assert data["time"] == {
        "sessions": 1,
        "endings": {"stopped": 1},
        "seconds": 90.0,
        "dialogues_per_minute": pytest.approx(6.0),
        "first_call": 1000.0,
        "last_call": 5002.0,
    }


def test_a_run_without_a_price_has_no_cost(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    for part in run.folder.parts("calls"):
        Path(part).unlink()
    run.folder.write_part("calls", [{**call, "cost": 0.0} for call in run.calls])
    data = figures(run.folder)
    assert data["usage"]["cost"] is None
    assert "cost" not in printed(data)


def test_memory_is_read_and_not_touched(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    memory = run.folder.path / "memory"
    before = {file.name: file.read_bytes() for file in memory.iterdir()}
    row = {"version": 0, "successes": 0, "failures": 0, "buffered_successes": 1, "buffered_failures": 1, "recorded": 2}
    assert figures(run.folder)["memory"] == {"key": row}
    assert {file.name: file.read_bytes() for file in memory.iterdir()} == before


def test_a_sample_that_is_there_twice_is_noticed(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    run.write(run.samples[:1])
    assert "no sample is there twice" in failed_checks(run)


def test_a_finished_dialogue_that_is_gone_is_noticed(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    gone = run.seeds[4].id
    rewrite(run, [sample for sample in run.samples if sample.seed_id != gone])
    assert failed_checks(run) == ["a run that ended finished left none"]
    assert "a run that ended finished left none (1 unfinished)" in printed(figures(run.folder))


def test_a_half_lost_dialogue_is_noticed(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    lost = of_label(run.samples, Label.IC)[0].id
    rewrite(run, [sample for sample in run.samples if sample.id != lost])
    assert failed_checks(run) == ["a dialogue has both ER and IC or neither"]


def test_a_dialogue_that_was_never_taken_is_noticed(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    run.write([run.samples[0].model_copy(update={"id": "x-ND", "seed_id": "x", "label": Label.ND})])
    assert {"finished dialogues are among those taken", "dialogues taken = finished + unfinished"} <= {
        *failed_checks(run)
    }


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"read": 13}, "dialogues read = refused + taken"),
        ({"read": 13, "taken": 10}, "dialogues taken = finished + unfinished"),
        ({"refused": {"too_long": 1, "language": 2}}, "every refused dialogue is on file"),
    ],
)
def test_statistics_that_contradict_the_files_are_noticed(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    run = a_run(tmp_path / "run")
    run.folder.write_ingest({**(run.folder.ingest() or {}), **change})
    assert what in failed_checks(run)


def test_figures_go_through_json(tmp_path: Path) -> None:
    data = figures(a_run(tmp_path / "run", unfinished=1).folder)
    assert json.loads(json.dumps(data)) == data


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", unfinished=1)
    for table in ("samples", "calls"):
        for part in run.folder.parts(table):
            Path(part).unlink()
    (run.folder.path / "sessions.jsonl").unlink()
    data = figures(run.folder)
    assert data["adds_up"]
    assert data["samples"]["total"] == 0
    assert data["usage"]["calls"] == 0
    assert data["usage"]["cost"] is None
    assert "unfinished" in printed(data)


def test_seeds_that_are_still_read_are_a_problem_to_wait_for(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    (run.folder.path / "seeds" / "ingest.json").unlink()
    with pytest.raises(RunError, match="has not read its seeds"):
        figures(run.folder)


def test_printed_it_fits_80_columns_and_says_what_counts(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", unfinished=2)
    run.folder.write_part("calls", [{**run.calls[0], "prompt_tokens": 10**12, "model": "[bold]a/" + "long" * 20}])
    text = printed(figures(run.folder))
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "refused: too_long",
        "rejected at confidence",
        "failed at the start: engine_crash",
        "H_I_N_E",
        "1.0T",
    ):
        assert words in text
    assert "add up" in text
    assert "[bold]a/long" in text
    assert "1 calls were made again" in text


def test_piped_it_has_no_colours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_report(figures(a_run(tmp_path / "run").folder), Console())
    out = capsys.readouterr().out
    assert "Calls per stage" in out
    assert "\x1b" not in out


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A model folder whose tokens are words; it would cut after two."""
    tokenizer = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.enable_truncation(2)
    folder = tmp_path / "words"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("given", [True, False])
def test_tokens_are_those_of_the_tokenizer_given_or_else_of_the_runs_model(
    tmp_path: Path, words: Path, given: bool
) -> None:
    run = a_run(tmp_path / "run", model="org/strong" if given else str(words))
    data = figures(run.folder, str(words) if given else "")["accepted"]
    assert data["tokenizer"] == str(words)
    sizes = []
    for sample in run.accepted():
        texts = [sample.dialogue.system, sample.follow_up or ""]
        texts += [text for turn in sample.dialogue.turns for text in (turn.user, turn.assistant)]
        sizes.append(sum(len(text.split()) for text in texts))
    assert data["labels"]["all"]["max_tokens"] == max(sizes)
    assert data["labels"]["all"]["tokens"] == pytest.approx(sum(sizes) / len(sizes))
    assert str(words) in printed(figures(run.folder, str(words))).replace("\n", "")


def test_a_tokenizer_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class AutoTokenizer:
        @staticmethod
        def from_pretrained(name: str, local_files_only: bool) -> None:
            assert local_files_only
            raise OSError(f"no {name}\nand much more")

    # The real one takes many seconds to import.
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=AutoTokenizer))
    with pytest.raises(TokenizerMissing, match=r"nobody/nothing has no tokenizer .*\(no nobody/nothing\).*--tokenizer"):
        figures(a_run(tmp_path / "run").folder, "nobody/nothing")
