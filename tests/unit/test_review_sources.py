"""What a review project's items are made of: candidates, samples of UC-Data, and which of them in which order."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.bench import read_bench
from review.config import ReviewError
from review.forms import Kind
from review.sources import candidates, read_shares, run_of, samples, shuffled, stratified
from synuc.types import Label
from tests.review_files import BENCH, write_candidates
from tests.reviewing import entries
from tests.runs import a_run


def test_candidates_are_read_as_they_were_mined(tmp_path: Path) -> None:
    found = candidates(write_candidates(tmp_path / "candidates.jsonl"), "WildChat-UC")
    gold = {item.id: item for item in read_bench([BENCH]).items}
    assert len(found) == 6
    for entry in found:
        assert entry.content.dialogue == gold[entry.key].history
        assert entry.content.follow_up == gold[entry.key].follow_up
        assert (entry.content.subset, entry.content.task) == ("WildChat-UC", "planning")
    assert candidates(tmp_path, "WildChat-UC") == found


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r":2: no valid JSON"),
        ("[]", r":2: a candidate is a JSON object"),
        ('{"id": "x", "follow_up": "y"}', r":2: no field `history`"),
    ],
)
def test_a_bad_candidate_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write_candidates(tmp_path / "candidates.jsonl", 1)
    path.write_text(path.read_text("utf-8") + line + "\n", "utf-8")
    with pytest.raises(ReviewError, match=message):
        candidates(path, "x")


def test_samples_come_from_an_export(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    beside = {"made_by": {"run": "x"}, "difficulty": {"runs": 2}}
    rows = [json.dumps({**sample.model_dump(mode="json"), **beside}) + "\n" for sample in run.accepted()]
    target = tmp_path / "run" / "export" / "uc-data.jsonl"
    target.parent.mkdir()
    target.write_text("".join(rows), "utf-8")
    for path in (target, target.parent, tmp_path / "run"):
        found = samples(path)
        assert {entry.key: entry.content.synthetic for entry in found} == {one.id: one.label for one in run.accepted()}
        assert run_of(path) == tmp_path / "run"
    with pytest.raises(ReviewError, match="synuc export"):
        samples(tmp_path)
    moved = tmp_path / "elsewhere" / "export"
    moved.parent.mkdir()
    target.parent.rename(moved)
    assert run_of(moved) is None


@given(st.integers(0, 30), st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(0, 9))
def test_a_sample_has_its_shares_or_all_there_is(number: int, nd: int, er: int, ic: int, seed: int) -> None:
    everything = entries(number, Kind.SPOT_CHECK)
    shares = {Label.ND: nd, Label.ER: er, Label.IC: ic}
    drawn = stratified(everything, shares, seed)
    there = Counter(entry.content.synthetic for entry in everything)
    taken = Counter(entry.content.synthetic for entry in drawn)
    assert all(taken[label] == min(there[label], share) for label, share in shares.items())
    assert len({entry.key for entry in drawn}) == len(drawn)
    assert stratified(everything[::-1], shares, seed) == drawn


def test_the_seed_decides_the_order() -> None:
    everything = entries(50)
    orders = [tuple(one.key for one in shuffled(everything, seed)) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("text", ["33", "1/2/3/4", "a/b/c", "0/0/0", "1/-2/3"])
def test_shares_are_three_numbers(text: str) -> None:
    assert read_shares("33/33/34") == {Label.ND: 33, Label.ER: 33, Label.IC: 34}
    with pytest.raises(ReviewError, match="--sample"):
        read_shares(text)
