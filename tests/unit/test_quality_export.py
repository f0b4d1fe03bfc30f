"""An export that balances, its card, and its benchmark as the evaluation reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from eval.bench import read_bench
from pipelines.export import export
from pipelines.quality.choice import Selection
from pipelines.quality.difficulty import difficulty
from pipelines.quality.rows import rows
from synuc.formatting import Retention
from synuc.types import Label
from tests.runs import Run, a_run


def lines(run: Run, file: str) -> list[dict[str, Any]]:
    text = (run.folder.path / "export" / file).read_text("utf-8")
    return [json.loads(line) for line in text[:-1].split("\n")]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """5 ND, 3 ER and 3 IC are accepted."""
    return a_run(tmp_path / "run")


def test_labels_are_even_in_every_file_and_the_rest_is_counted(run: Run) -> None:
    said = "\n".join(export(run.folder, Retention.PARTIAL, Selection(("label", "language"))))
    assert "9 accepted samples (3 ND, 3 ER, 3 IC)" in said
    assert "2 accepted samples were left out to balance label, language" in said
    ids = [row["id"] for row in lines(run, "uc-data.jsonl")]
    assert ids == sorted(ids)
    for file in ("uc-data-sft.jsonl", "uc-data-grpo.jsonl", "uc-bench.jsonl"):
        assert [row["id"] for row in lines(run, file)] == ids
    for name in ("uc-data-sft", "uc-data-grpo"):
        assert pq.read_table(run.folder.path / "export" / f"{name}.parquet")["id"].to_pylist() == ids
    card = (run.folder.path / "export" / "README.md").read_text("utf-8")
    assert "9 chat histories" in card
    assert "synuc export run --retention partial --balance label,language" in card
    assert "**2 accepted samples were left out.** Those here were taken evenly by label, language." in card
    assert "| label | ND | 3 | 2 |" in card
    assert "| label | IC | 3 | 0 |" in card


def test_the_same_samples_whatever_the_order_of_rows(run: Run, tmp_path: Path) -> None:
    other = a_run(tmp_path / "other" / "run")
    for part in other.folder.parts("samples"):
        Path(part).unlink()
    for sample in other.samples:
        other.write([sample])
    contents = []
    for one in (run, other):
        export(one.folder, Retention.PARTIAL, Selection(("label",)))
        contents.append({file.name: file.read_bytes() for file in (one.folder.path / "export").iterdir()})
    assert contents[0] == contents[1]


def test_strata_of_difficulty_and_the_difficulty_of_each_sample(run: Run) -> None:
    normal = [sample.id for sample in run.accepted() if sample.label is Label.ND]
    found = {id: difficulty(Label.ND, ["ND", "ND"]) for id in normal[:3]}
    found |= {id: difficulty(Label.ND, ["IC", "IC"]) for id in normal[3:]}
    export(run.folder, Retention.PARTIAL, Selection(("label",), ("difficulty",), found))
    rows = lines(run, "uc-data.jsonl")
    levels = [row["difficulty"]["level"] for row in rows if row["label"] == "ND"]
    assert sorted(levels) == ["easy", "easy", "hard"]
    assert not any("difficulty" in row for row in rows if row["label"] != "ND")
    card = (run.folder.path / "export" / "README.md").read_text("utf-8")
    assert "--balance label --stratify difficulty --difficulty RUN ..." in card
    assert "evenly by label, and in proportion by difficulty" in card
    assert "| difficulty | hard | 1 | 1 |" in card


def test_dimension_of_the_anchor_and_its_distance_are_keys_like_others(run: Run) -> None:
    export(run.folder, Retention.PARTIAL, Selection(("label", "distance"), ("dimension",)))
    found = {row.id: row for row in rows(run.folder)}
    card = (run.folder.path / "export" / "README.md").read_text("utf-8")
    assert "--balance label,distance --stratify dimension" in card
    kept = [found[row["id"]] for row in lines(run, "uc-data.jsonl")]
    for key, values in (
        ("distance", [str(row.distance or "none") for row in kept]),
        ("dimension", [row.anchor_dimension or "none" for row in kept]),
    ):
        for value in set(values):
            assert f"| {key} | {value} | {values.count(value)} |" in card


def test_without_a_selection_nothing_is_left_out(run: Run) -> None:
    said = "\n".join(export(run.folder, Retention.PARTIAL, Selection(())))
    assert "left out" not in said
    with_none = {file.name: file.read_bytes() for file in (run.folder.path / "export").iterdir()}
    export(run.folder, Retention.PARTIAL)
    assert with_none == {file.name: file.read_bytes() for file in (run.folder.path / "export").iterdir()}


def test_the_benchmark_is_read_by_the_evaluation_with_the_samples_ids(run: Run) -> None:
    export(run.folder, Retention.OMIT)
    bench = read_bench([run.folder.path / "export" / "uc-bench.jsonl"])
    assert not bench.refused
    assert [item.id for item in bench.items] == [sample.id for sample in run.accepted()]
    for item, sample in zip(bench.items, run.accepted(), strict=True):
        assert (item.history, item.follow_up, item.label) == (sample.dialogue, sample.follow_up, sample.label)
        assert (item.relation, item.speaking, item.language) == (sample.relation, sample.speaking, sample.language)
        if sample.anchor and sample.new:
            assert item.rationale
            assert item.rationale.historical[0].turn == sample.anchor.turn
            assert str(item.rationale.new[0]) == f"{sample.new.type} {sample.new}"
