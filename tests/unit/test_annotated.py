"""The data made by hand: sixteen accepted samples on real dialogues, and the pairs of constraint wordings."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipelines.export import GRPO, SFT
from synuc.config import Method
from synuc.formatting import Answer, answer_of, format_answer, parse_answer
from synuc.sample import Outcome, Sample
from synuc.types import Label
from tests import annotated
from tests.annotated import AnnotationError, annotated_samples, write_export

PAIRS = Path(__file__).parents[1] / "data" / "constraint_pairs.jsonl"


def of_label(*labels: Label) -> list[Sample]:
    return [sample for sample in annotated_samples() if sample.label in labels]


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_labels_and_languages() -> None:
    samples = annotated_samples()
    assert Counter(sample.label for sample in samples) == {Label.IC: 6, Label.ER: 5, Label.ND: 5}
    assert Counter(sample.language for sample in samples) == {"en": 12, "zh": 4}
    assert {sample.label for sample in samples if sample.language == "zh"} == set(Label)
    assert len({sample.seed_id for sample in samples}) == len(samples)
    assert {sample.relation for sample in of_label(Label.IC)} == {"H_E_N_I", "H_I_N_E", "H_I_N_I"}


def test_samples_are_as_a_run_makes_them() -> None:
    for sample in annotated_samples():
        assert sample.id == f"{sample.seed_id}-{sample.label}"
        assert (sample.outcome, sample.stage, sample.kind, sample.reason) == (Outcome.ACCEPTED, "", "", "")
        assert sample.eligibility is not None
        assert sample.eligibility.eligible
        assert sample.judgment is not None
        assert sample.judgment.label is sample.label
        assert sample.judgment.claim_holds
        assert sample.judgment.confidence >= Method().tau
        assert sample.dialogue.turns
        assert all(1 <= c.turn <= len(sample.dialogue.turns) for c in sample.constraints)
        assert list(sample.constraints) == sorted(sample.constraints, key=lambda c: c.type)
        assert (sample.repository_version is None) is (sample.label is not Label.IC)


def test_what_the_file_does_not_hold() -> None:
    for row in lines(annotated.ANNOTATIONS):
        assert set(row) == set(Sample.model_fields) - {"dialogue", "contrast"}
        assert (row["follow_up"] is None) is (row["label"] == "ND")


@pytest.mark.parametrize("label", list(Label))
def test_answers_are_read_back(label: Label) -> None:
    for sample in of_label(label):
        answer = answer_of(sample)
        assert parse_answer(format_answer(answer)) == answer
        # What was written is in its normal form, so that nothing of it changes on the way into the answer.
        assert sample.judgment is not None
        assert answer.analysis == sample.judgment.analysis
        assert [str(item).partition(" ")[2] for item in answer.historical] == [str(c) for c in sample.constraints]


def test_evidence_is_verbatim() -> None:
    for sample in annotated_samples():
        for constraint in sample.constraints:
            assert constraint.evidence in sample.dialogue.turns[constraint.turn - 1].user, sample.id
        for new in sample.new_constraints:
            assert sample.follow_up is not None
            assert new.evidence in sample.follow_up, sample.id


def test_pairs_are_named() -> None:
    for sample in of_label(Label.ER, Label.IC):
        assert sample.anchor in sample.constraints
        assert sample.new in sample.new_constraints
        assert sample.speaking is not None
        assert sample.relation is not None
        assert sample.relation.label is sample.label
        assert sample.continues != "new_task"
        verdict = sample.anchor_verdict
        assert verdict is not None
        assert verdict.pair_holds
        assert verdict.message_holds
        assert verdict.revision_signal is (sample.label is Label.ER)
        answer = answer_of(sample)
        assert answer.anchor is not None
        assert answer.new_constraint is not None
        assert f'"{answer.anchor.value}"' in answer.analysis, sample.id
        assert f'"{answer.new_constraint.value}"' in answer.analysis, sample.id
    for sample in of_label(Label.ND):
        assert (sample.anchor, sample.new, sample.speaking, sample.anchor_verdict) == (None, None, None, None)


def test_values_are_short() -> None:
    for sample in annotated_samples():
        for value in [*(c.value for c in sample.constraints), *(c.value for c in sample.new_constraints)]:
            assert len(value.split()) < 12
            assert len(value) < 60


def test_a_missing_dialogue_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = lines(annotated.ANNOTATIONS)[0] | {"seed_id": "feedfeedfeedfeed"}
    file = tmp_path / "lost.jsonl"
    file.write_text(json.dumps(row), "utf-8")
    monkeypatch.setattr(annotated, "ANNOTATIONS", file)
    annotated._annotated.cache_clear()
    try:
        with pytest.raises(AnnotationError, match=r"lost\.jsonl annotates .* sharegpt-sample .*: feedfeedfeedfeed"):
            annotated_samples()
    finally:
        annotated._annotated.cache_clear()


def test_export(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "export"
    write_export(folder)
    ids = sorted(sample.id for sample in annotated_samples())
    for name, schema in (("uc-data-sft", SFT), ("uc-data-grpo", GRPO)):
        table = pq.read_table(folder / f"{name}.parquet")
        assert table.schema == schema
        assert table.to_pylist() == lines(folder / f"{name}.jsonl")
        assert table["id"].to_pylist() == ids
    for row in lines(folder / "uc-data-sft.jsonl"):
        answer = parse_answer(row["messages"][-1]["content"])
        assert isinstance(answer, Answer)
        assert answer.label.value == row["label"]
    for row in lines(folder / "uc-data-grpo.jsonl"):
        assert row["reference"]["label"] == row["label"]
        assert (row["reference"]["historical_constraint"] is None) is (row["label"] == "ND")


def test_pairs_are_well_formed_and_balanced() -> None:
    rows = lines(PAIRS)
    assert len(rows) >= 120
    for row in rows:
        assert set(row) == {"a", "b", "equal", "language", "split"}
        assert isinstance(row["equal"], bool)
        for side in (row["a"], row["b"]):
            dimension, _, value = side.partition(": ")
            assert dimension.isascii()
            assert dimension.isidentifier()
            assert dimension == dimension.lower()
            assert value == value.strip() != ""
        assert row["a"] != row["b"]
    cells = Counter((row["language"], row["equal"], row["split"]) for row in rows)
    assert set(cells) == {
        (lang, equal, split) for lang in ("en", "zh") for equal in (True, False) for split in ("dev", "test")
    }
    assert max(cells.values()) - min(cells.values()) <= 2
    assert len({frozenset((row["a"], row["b"])) for row in rows}) == len(rows)
