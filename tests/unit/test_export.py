"""The exported data sets: what is in them, and that the card says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq
import pytest
import yaml

from pipelines import export as export_module
from pipelines.card import _size
from pipelines.export import FILES, ExportError, export
from synuc.config import ProgramName
from synuc.formatting import Retention, grpo_example, parse_answer, sft_example
from synuc.sample import Sample
from synuc.types import Label, Relation
from tests.runs import HOSTILE, LONG, Run, a_run, of_label


def lines(run: Run, file: str) -> list[dict[str, Any]]:
    # Not splitlines: U+2028 stands in the texts.
    text = (run.folder.path / "export" / file).read_text("utf-8")
    assert text.endswith("\n")
    return [json.loads(line) for line in text[:-1].split("\n")]


def front_and_card(run: Run) -> tuple[dict[str, Any], str]:
    _, front, body = (run.folder.path / "export" / "README.md").read_text("utf-8").split("---\n", 2)
    return yaml.safe_load(front), body


def contents(run: Run) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (run.folder.path / "export").iterdir()}


def test_accepted_samples_and_no_others_in_the_order_of_their_ids(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    export(run.folder, Retention.PARTIAL)
    ids = [sample.id for sample in run.accepted()]
    assert len(ids) == 11
    assert {sample.relation for sample in run.accepted()} == {None, *Relation}
    for file in ("uc-data-sft.jsonl", "uc-data-grpo.jsonl", "uc-data.jsonl"):
        assert [row["id"] for row in lines(run, file)] == ids
    assert lines(run, "uc-data-sft.jsonl") == [sft_example(s) for s in run.accepted()]
    assert lines(run, "uc-data-grpo.jsonl") == [grpo_example(s) for s in run.accepted()]


@pytest.mark.parametrize("name", ["uc-data-sft", "uc-data-grpo"])
def test_parquet_holds_the_rows_of_the_jsonl(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "ROWS_PER_GROUP", 3)
    run = a_run(tmp_path / "run")
    export(run.folder, Retention.FULL)
    path = run.folder.path / "export" / f"{name}.parquet"
    assert pq.read_table(path).to_pylist() == lines(run, f"{name}.jsonl")
    assert pq.ParquetFile(path).num_row_groups == 4


def test_answers_can_be_read_and_references_name_the_pair(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    export(run.folder, Retention.PARTIAL)
    for row in lines(run, "uc-data-sft.jsonl"):
        answer = parse_answer(row["messages"][1]["content"])
        assert getattr(answer, "label", answer) == row["label"]
    for row in lines(run, "uc-data-grpo.jsonl"):
        assert [message["role"] for message in row["messages"]] == ["user"]
        assert (row["reference"]["historical_constraint"] is None) == (row["label"] == "ND")


def test_all_intermediates_come_back_as_the_samples_they_were(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    export(run.folder, Retention.OMIT)
    rows = lines(run, "uc-data.jsonl")
    made_by = [row.pop("made_by") for row in rows]
    assert [Sample.model_validate(row) for row in rows] == run.accepted()
    assert HOSTILE in rows[0]["dialogue"]["turns"][0]["user"]
    models = dict.fromkeys(("generator", "verifier", "curator"), "org/strong")
    assert made_by[0] == {"run": run.folder.method["fingerprint"], "prompts": "prompts-1", "models": models}


@pytest.mark.parametrize("retention", Retention)
def test_retention_is_kept_and_named(tmp_path: Path, retention: Retention) -> None:
    run = a_run(tmp_path / "run")
    export(run.folder, retention)
    shown = "\n".join(row["messages"][0]["content"] for row in lines(run, "uc-data-sft.jsonl"))
    assert (LONG in shown) == (retention is Retention.FULL)
    assert ("begin middle" in shown) == (retention is not Retention.OMIT)
    assert f"**Retention `{retention.value}`:**" in front_and_card(run)[1]


def test_the_cards_front_matter_is_what_the_hub_reads(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    export(run.folder, Retention.PARTIAL)
    front, _ = front_and_card(run)
    assert front["language"] == ["en", "zh"]
    assert front["task_categories"] == ["text-classification"]
    assert front["size_categories"] == ["n<1K"]
    files = {config["config_name"]: config["data_files"] for config in front["configs"]}
    assert files == {"sft": "uc-data-sft.parquet", "grpo": "uc-data-grpo.parquet"}
    assert set(files.values()) < {*FILES}


def test_the_cards_numbers_are_those_of_the_data(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", tau=70)
    export(run.folder, Retention.PARTIAL)
    _, text = front_and_card(run)
    accepted = run.accepted()
    assert any(sample.judgment and sample.judgment.confidence == 79 for sample in accepted)
    assert f"{len(accepted)} chat histories" in text
    for label in (*Label, None):
        samples = of_label(accepted, label) if label else accepted
        turns = [len(sample.dialogue.turns) for sample in samples]
        en = sum(sample.language == "en" for sample in samples)
        mean = sum(turns) / len(turns)
        cells = [en, len(turns) - en, len(turns), f"{mean:.2f}", max(turns), f"{2 * mean:.2f}"]
        name = f"`{label.value}`" if label else "all"
        assert f"| {name} | {' | '.join(map(str, cells))} |" in text
    assert "| tau | 70:" in text
    assert "| K | 3:" in text
    assert "| alpha | 1.0:" in text
    assert run.folder.method["fingerprint"] in text
    assert "prompts-1" in text
    assert "| verifier | org/strong |" in text
    assert r"| chats\|odd.jsonl | 9 |" in text
    assert "One model generated and verified" in text
    assert "not finished" not in text
    assert "switched off" not in text


def test_the_card_names_ablations_and_hides_folders(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", model="/home/alice/secret/tuned", confidence_filter=False)
    export(run.folder, Retention.PARTIAL)
    _, text = front_and_card(run)
    assert "| switched off | the confidence filter |" in text
    assert "| generator | tuned |" in text
    assert not any(b"alice" in data for data in contents(run).values())


@pytest.mark.parametrize("program", get_args(ProgramName))
def test_the_card_says_which_program_made_it(tmp_path: Path, program: ProgramName) -> None:
    run = a_run(tmp_path / "run", program=program)
    export(run.folder, Retention.PARTIAL)
    text = front_and_card(run)[1]
    how = text.partition("## How it was made")[2].partition("    synuc synthesize")[0]
    baseline = program not in ("synuc", "contrastive")
    assert ("no verifier judged" in how) is baseline
    assert ("a verifier judges" in how) is not baseline
    assert ("SPEAKING" in how) is (program == "synuc")
    assert ("triplets" in how) is (program == "contrastive")
    rows = {row for row in ("verifier", "curator", "tau", "K", "retrieval", "alpha") if f"| {row} | " in text}
    if baseline:
        assert program in how.lower()
        assert rows == {"alpha"}
        assert "nothing has judged them" in text
    else:
        assert rows == {"verifier", "curator", "tau", "K", "retrieval"} | ({"alpha"} if program == "synuc" else set())
    assert ("the verifier's own number" in text) is not baseline
    assert "for `synuc eval uc --bench`" in text


def test_the_card_has_no_rows_for_what_was_switched_off(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", confidence_filter=False, trajectory_update=False)
    export(run.folder, Retention.PARTIAL)
    text = front_and_card(run)[1]
    assert not any(f"| {row} | " in text for row in ("tau", "K"))
    assert "| switched off | the update of the memory; the confidence filter |" in text


def test_one_run_gives_the_same_bytes_whatever_the_order_of_its_rows(tmp_path: Path) -> None:
    run, other = a_run(tmp_path / "a" / "run"), a_run(tmp_path / "b" / "run")
    for part in other.folder.parts("samples"):
        Path(part).unlink()
    for sample in other.samples:
        other.write([sample])
    export(run.folder, Retention.PARTIAL)
    export(other.folder, Retention.PARTIAL)
    assert {*contents(run)} == {*FILES}
    assert contents(run) == contents(other)
    before = contents(run)
    export(run.folder, Retention.PARTIAL)
    assert contents(run) == before


def test_an_unfinished_run_says_how_much_is_open(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", unfinished=2)
    said = "\n".join(export(run.folder, Retention.PARTIAL))
    assert "11 accepted samples (5 ND, 3 ER, 3 IC)" in said
    assert "2 of 11 dialogues aren't finished" in said
    assert "2 of 11 dialogues are open" in front_and_card(run)[1]


def test_a_repeated_id_is_exported_once_and_said(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    run.write(run.accepted()[:2])
    said = "\n".join(export(run.folder, Retention.PARTIAL))
    assert len(lines(run, "uc-data.jsonl")) == 11
    assert "2 samples have the id of another" in said


@pytest.mark.parametrize("empty", [True, False])
def test_nothing_accepted_is_said_with_where_to_look(tmp_path: Path, empty: bool) -> None:
    run = a_run(tmp_path / "run")
    for part in run.folder.parts("samples"):
        Path(part).unlink()
    if not empty:
        run.write([sample for sample in run.samples if sample.outcome != "accepted"])
    with pytest.raises(ExportError, match=f"synuc report {run.folder.path}"):
        export(run.folder, Retention.PARTIAL)
    assert not (run.folder.path / "export").exists()


def test_a_failure_leaves_the_old_files_whole_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path / "run")
    export(run.folder, Retention.PARTIAL)
    before, listed = contents(run), {*run.folder.path.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_module, "grpo_example", full)
    with pytest.raises(ExportError, match="No space left"):
        export(run.folder, Retention.OMIT)
    assert contents(run) == before
    assert {*run.folder.path.iterdir()} == listed


def test_samples_are_never_held_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: set[int] = set()
    most = 0

    class Watched(dict[str, Any]):
        def __init__(self, row: dict[str, Any]) -> None:
            nonlocal most
            super().__init__(row)
            alive.add(id(self))
            most = max(most, len(alive))

        def __del__(self) -> None:
            alive.discard(id(self))

    monkeypatch.setattr(export_module, "ROWS_PER_GROUP", 2)
    monkeypatch.setattr(export_module, "sft_example", lambda *given: Watched(sft_example(*given)))
    export(a_run(tmp_path / "run").folder, Retention.PARTIAL)
    assert 2 <= most <= 4


@pytest.mark.parametrize(
    ("count", "words"),
    [(1, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (123_456, "100K<n<1M"), (10**6, "1M<n<10M"), (10**13, "n>1T")],
)
def test_size_categories_are_the_hubs(count: int, words: str) -> None:
    assert _size(count) == words
