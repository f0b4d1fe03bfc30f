"""Benchmarks of a chosen size and balance."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from review.balance import balanced
from review.config import ReviewError
from review.forms import Kind
from synuc.types import Label
from tests.review_files import exported, label_all
from tests.reviewing import a_project, entries, running

ROWS = st.lists(st.tuples(st.sampled_from(["ND", "ER", "IC"]), st.sampled_from(["en", "zh", "ja"])), max_size=40)


def rows_of(pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"id": str(n), "label": label, "language": language} for n, (label, language) in enumerate(pairs)]


@given(pairs=ROWS, data=st.data())
def test_each_label_has_its_share_and_its_languages_as_far_as_they_go(
    pairs: list[tuple[str, str]], data: st.DataObject
) -> None:
    rows = rows_of(pairs)
    there = Counter(label for label, _ in pairs)
    shares = {label: data.draw(st.integers(0, there[label])) for label in Label}
    kept, others = balanced(rows, shares)
    assert Counter(row["label"] for row in kept) == Counter({label.value: n for label, n in shares.items()})
    assert len(kept) + sum(others.values()) == len(rows)
    assert [row for row in rows if row in kept] == kept
    assert balanced(rows, shares)[0] == kept
    for label in Label:
        pool = Counter(language for at, language in pairs if at == label)
        taken = Counter(row["language"] for row in kept if row["label"] == label)
        # A language has fewer than another by two or more only where it has no more.
        assert all(taken[one] >= max(taken.values(), default=0) - 1 or taken[one] == n for one, n in pool.items())


def test_the_papers_subset_is_made_of_what_is_there() -> None:
    pairs = [("IC", "en")] * 30 + [("IC", "zh")] * 90 + [("ER", "en")] * 25 + [("ND", "zh")] * 20
    kept, others = balanced(rows_of(pairs), {Label.ND: 20, Label.ER: 20, Label.IC: 60})
    assert Counter((row["label"], row["language"]) for row in kept) == {
        ("IC", "en"): 30,
        ("IC", "zh"): 30,
        ("ER", "en"): 20,
        ("ND", "zh"): 20,
    }
    assert others == {"ND beyond the sample": 0, "ER beyond the sample": 5, "IC beyond the sample": 60}


@pytest.mark.parametrize(
    ("there", "shares", "most"),
    [((20, 20, 45), (20, 20, 60), "15/15/45"), ((3, 50, 50), (33, 33, 34), "3/3/3"), ((0, 9, 9), (1, 1, 1), "0/0/0")],
)
def test_too_few_of_a_label_is_an_error_that_says_what_would_do(
    there: tuple[int, int, int], shares: tuple[int, int, int], most: str
) -> None:
    rows = rows_of([(label.value, "en") for label, n in zip(Label, there, strict=True) for _ in range(n)])
    with pytest.raises(ReviewError, match=f"only {'/'.join(map(str, there))} are finished and usable; {most} is"):
        balanced(rows, dict(zip(Label, shares, strict=True)))


def test_a_benchmark_is_exported_with_its_shares_and_the_rest_is_counted(tmp_path: Path) -> None:
    config, tokens = a_project(f"sqlite:///{tmp_path / 'review.db'}", entries(9))
    with running(config, tokens) as team:
        label_all(team, 9)  # three of each; one of the ND waits for its category
        for _ in range(2):
            for name in ("Ana", "Bo"):
                team[name].give("target", {"target": "ND"})
    path = tmp_path / "bench.jsonl"
    with pytest.raises(ReviewError, match="1/1/3 is the most"):
        exported(config, path, shares={Label.ND: 3, Label.ER: 3, Label.IC: 6})
    assert not path.exists()
    done = exported(config, path, shares={Label.ND: 1, Label.ER: 1, Label.IC: 3})
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert Counter(row["label"] for row in rows) == {"ND": 1, "ER": 1, "IC": 3}
    assert done.left_out == {"unfinished": 1, "ND beyond the sample": 1, "ER beyond the sample": 2}
    first = path.read_bytes()
    exported(config, path, shares={Label.ND: 1, Label.ER: 1, Label.IC: 3})
    assert path.read_bytes() == first


@pytest.mark.parametrize(("kind", "shape"), [(Kind.SPOT_CHECK, "own"), (Kind.BENCHMARK, "argilla")])
def test_shares_are_for_a_benchmark_only(tmp_path: Path, kind: Kind, shape: str) -> None:
    config, _ = a_project(f"sqlite:///{tmp_path / 'review.db'}", entries(3, kind), kind)
    with pytest.raises(ReviewError, match="--sample is for a benchmark"):
        exported(config, tmp_path / "x", shape, {Label.ND: 1, Label.ER: 1, Label.IC: 1})
