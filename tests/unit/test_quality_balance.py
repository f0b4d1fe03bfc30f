"""Balance, distances and the bounded choice of rows, by hand."""

from __future__ import annotations

from collections import Counter
from math import log
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.quality.balance import balance, evenness, spread
from pipelines.quality.rows import Row, at_most, rows
from synuc.types import Label
from tests.quality import a_row
from tests.runs import a_run


def test_evenness_is_the_entropy_over_its_maximum() -> None:
    assert evenness([5, 5], 2) == pytest.approx(1)
    assert evenness([5], 2) == 0
    assert evenness([3, 1], 2) == pytest.approx(-(0.75 * log(0.75) + 0.25 * log(0.25)) / log(2))
    assert evenness([2, 2], 4) == pytest.approx(0.5)
    assert evenness([], 3) is None
    assert evenness([7], 1) is None


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=20))
def test_evenness_is_a_share(counts: list[int]) -> None:
    assert 0 <= (evenness(counts, len(counts)) or 0) <= 1 + 1e-9


def test_a_spread_says_what_has_no_value_and_what_never_occurs() -> None:
    assert spread(Counter({"b": 2, None: 5}), ["a", "b"]) == {
        "counts": {"b": 2, "a": 0},
        "values": 1,
        "none": 5,
        "evenness": 0,
    }
    assert spread(Counter({"x": 1, "y": 1}))["evenness"] == pytest.approx(1)


def test_labels_schemas_relations_and_distances() -> None:
    given_rows = [
        a_row("1-ND", Label.ND),
        a_row("1-ER", Label.ER, schema="genre", distance=3),
        a_row("1-IC", Label.IC, distance=1, relation="H_E_N_I"),
        a_row("2-IC", Label.IC, distance=None, language="zh", schema=None),
    ]
    data = balance(given_rows)
    assert data["label"]["counts"] == {"IC": 2, "ND": 1, "ER": 1}
    assert data["label"]["evenness"] == pytest.approx((0.5 * log(2) + 0.5 * log(4)) / log(3))
    assert data["language"]["counts"] == {"en": 3, "zh": 1}
    assert {name: n for name, n in data["schema"]["counts"].items() if n} == {"genre": 1, "key": 1}
    assert data["schema"]["none"] == 1
    assert data["schema"]["evenness"] == pytest.approx(log(2) / log(8))
    assert data["schema_of_er"]["values"] == data["schema_of_ic"]["values"] == 1
    assert data["relation"]["counts"] == {"H_E_N_E": 1, "H_E_N_I": 1, "H_I_N_I": 1, "H_I_N_E": 0}
    assert data["anchor_dimension"]["counts"] == {"tone": 3}
    assert data["distance"] == {"counts": {"1": 1, "3": 1}, "mean": 2, "median": 2, "unknown": 1}


def test_rows_of_a_run(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    found = {row.id: row for row in rows(run.folder)}
    assert sorted(found) == [sample.id for sample in run.accepted()]
    for sample in run.accepted():
        row = found[sample.id]
        assert (row.label, row.relation, row.follow_up) == (sample.label, sample.relation, sample.follow_up)
        assert row.users.startswith("Write a story")
        assert "Once upon a time" not in row.users
        if sample.anchor:
            assert row.distance == len(sample.dialogue.turns) + 1 - sample.anchor.turn
        else:
            assert row.distance is None
            assert row.schema is None
    assert balance(found.values())["label"]["counts"] == {"ND": 5, "ER": 3, "IC": 3}


def test_an_anchor_in_a_turn_that_isnt_there_has_no_distance(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    sample = next(sample for sample in run.accepted() if sample.anchor)
    assert sample.anchor
    lost = sample.anchor.model_copy(update={"turn": 99})
    for part in run.folder.parts("samples"):
        Path(part).unlink()
    run.write([sample.model_copy(update={"anchor": lost})])
    assert [row.distance for row in rows(run.folder)] == [None]


@given(st.permutations(range(8)), st.integers(0, 9))
def test_rows_are_drawn_whatever_their_order(order: list[int], limit: int) -> None:
    every = [a_row(f"{n}-ND", Label.ND) for n in range(8)]
    drawn = at_most(limit, [every[n] for n in order])
    assert drawn == at_most(limit, every)
    assert len(drawn) == min(limit, 8)
    assert [row.id for row in drawn] == sorted(row.id for row in drawn)


def test_drawn_rows_are_among_those_of_a_larger_draw() -> None:
    every: list[Row] = [a_row(f"{n}-ND", Label.ND) for n in range(30)]
    assert {row.id for row in at_most(5, every)} < {row.id for row in at_most(15, every)}
