"""Features of benchmark items and the figures of their slices, by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.bench import BenchItem, GoldConstraint, Rationale
from eval.slices import features, sliced
from synuc.speaking import Speaking
from synuc.types import ConstraintType, Dialogue, Label, Turn

ND, ER, IC = Label.ND, Label.ER, Label.IC


def pair(historical: ConstraintType, new: ConstraintType, turn: int | None = None) -> Rationale:
    return Rationale(
        historical=(GoldConstraint(type=historical, dimension="audience", value="children", turn=turn),),
        new=(GoldConstraint(type=new, dimension="audience", value="experts"),),
    )


def bench_item(label: Label = ND, turns: int = 1, chars: int = 10, **changes: Any) -> BenchItem:
    """An item of so many turns; its first answer makes the history `chars` long."""
    first = Turn(user="u", assistant="a" * (chars - 1 - 2 * (turns - 1)))
    history = Dialogue(turns=(first, *[Turn(user="u", assistant="a")] * (turns - 1)), system="A system message.")
    if label is not ND:
        changes.setdefault("rationale", Rationale(text="They clash."))
    fields = {"id": "1", "subset": "WildChat-UC", "language": "en", "history": history, "follow_up": "Go on."}
    return BenchItem.model_validate(fields | {"label": label} | changes)


def test_the_features_of_an_annotated_item() -> None:
    item = bench_item(
        IC, turns=4, chars=700, rationale=pair("explicit", "implicit", turn=2), speaking=Speaking.KEY, task="writing"
    )
    assert features(item) == {
        "language": "en",
        "turns": "3-5",
        "characters": "<=1000",
        "prompt_tokens": "unknown",
        "relation": "H_E_N_I",
        "speaking": "key",
        "task": "writing",
        "subset": "WildChat-UC",
        "distance": "3-5",
    }


def test_the_features_of_a_bare_item() -> None:
    found = features(bench_item())
    assert {found[name] for name in ("relation", "speaking", "task", "distance")} == {"none"}


@pytest.mark.parametrize(
    ("turns", "value"), [(1, "1-2"), (2, "1-2"), (3, "3-5"), (5, "3-5"), (6, "6-10"), (10, "6-10"), (11, ">10")]
)
def test_turns(turns: int, value: str) -> None:
    assert features(bench_item(turns=turns, chars=100))["turns"] == value


CHARACTERS = [
    (1000, "<=1000"),
    (1001, "1001-2000"),
    (2000, "1001-2000"),
    (2001, "2001-4000"),
    (4000, "2001-4000"),
    (4001, ">4000"),
]


@pytest.mark.parametrize(("characters", "value"), CHARACTERS)
def test_characters_without_the_system_message(characters: int, value: str) -> None:
    assert features(bench_item(chars=characters))["characters"] == value


@pytest.mark.parametrize(
    ("tokens", "value"),
    [(None, "unknown"), (1500, "<=1500"), (1501, "1501-2000"), (3000, "2001-3000"), (3001, ">3000")],
)
def test_tokens_of_the_prompt(tokens: int | None, value: str) -> None:
    assert features(bench_item(), tokens)["prompt_tokens"] == value


@pytest.mark.parametrize(
    ("turn", "value"),
    [
        (8, "1"),
        (7, "2"),
        (6, "3-5"),
        (4, "3-5"),
        (3, ">5"),
        (1, ">5"),
        (None, "unknown"),
        (9, "unknown"),
        (0, "unknown"),
    ],
)
def test_distance_to_the_follow_up_after_eight_turns(turn: int | None, value: str) -> None:
    item = bench_item(ER, turns=8, chars=100, rationale=pair("explicit", "explicit", turn))
    assert features(item)["distance"] == value


def test_no_pair_has_no_distance() -> None:
    assert features(bench_item(IC))["distance"] == "none"


ITEMS = [
    bench_item(ND, turns=11, chars=100, language="zh", task="writing"),
    bench_item(ND, turns=3),
    bench_item(ER, turns=3, rationale=pair("explicit", "explicit")),
    bench_item(IC, turns=1, rationale=pair("implicit", "implicit", turn=1)),
    bench_item(IC, turns=1, rationale=pair("implicit", "implicit", turn=1)),
    bench_item(IC, turns=1, rationale=pair("explicit", "implicit", turn=1)),
]
PREDICTED = [ND, IC, ER, IC, None, ND]


def test_the_figures_of_the_slices() -> None:
    slices = sliced(ITEMS, PREDICTED)
    everything = slices["subset"]["WildChat-UC"]
    assert everything["n"] == 6
    assert everything["labels"] == {"ND": 2, "ER": 1, "IC": 3}
    assert everything["accuracy"] == pytest.approx(3 / 6)
    # ND: precision 1/2, recall 1/2. ER: 1. IC: precision 1/2, recall 1/3.
    assert everything["f1"] == pytest.approx((1 / 2 + 1 + 2 / 5) / 3)
    assert everything["recall_ic"] == pytest.approx(1 / 3)
    # Wilson of 3 in 6: (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n) with z = 1.959964, so 0.5 ± 0.31238.
    assert everything["accuracy_interval"] == pytest.approx((0.5 - 0.31238, 0.5 + 0.31238), abs=1e-4)


def test_a_label_that_a_slice_lacks_counts_for_nothing() -> None:
    slices = sliced(ITEMS, PREDICTED)
    revisions = slices["relation"]["H_E_N_E"]
    assert (revisions["f1"], revisions["recall_ic"]) == (1, None)
    # ND with precision 1 and recall 1/2, ER right; the false IC is no class of the slice.
    middle = slices["turns"]["3-5"]
    assert middle["labels"] == {"ND": 1, "ER": 1, "IC": 0}
    assert (middle["f1"], middle["recall_ic"]) == (pytest.approx((0 + 1) / 2), None)
    short = slices["turns"]["1-2"]
    # Only IC: precision 1, recall 1/3.
    assert (short["f1"], short["recall_ic"]) == (pytest.approx(1 / 2), pytest.approx(1 / 3))


def test_slices_come_in_order() -> None:
    slices = sliced(ITEMS, PREDICTED)
    assert list(slices["turns"]) == ["1-2", "3-5", ">10"]
    assert list(slices["language"]) == ["en", "zh"]
    assert list(slices["task"]) == ["writing", "none"]
    assert list(slices["distance"]) == ["1", "none", "unknown"]
    lengths = sliced(ITEMS[:3], PREDICTED[:3], [5000, 1500, None])["prompt_tokens"]
    assert list(lengths) == ["<=1500", ">3000", "unknown"]


@given(st.lists(st.tuples(st.sampled_from(ITEMS), st.none() | st.sampled_from(Label)), min_size=1, max_size=12))
@settings(deadline=None, max_examples=20)
def test_every_item_is_in_one_slice_of_each_feature(answered: list[tuple[BenchItem, Label | None]]) -> None:
    slices = sliced([item for item, _ in answered], [answer for _, answer in answered])
    assert set(slices) == set(features(ITEMS[0]))
    for values in slices.values():
        assert sum(figures["n"] for figures in values.values()) == len(answered)
        for figures in values.values():
            low, high = figures["accuracy_interval"]
            assert low - 1e-12 <= figures["accuracy"] <= high + 1e-12
            assert (figures["recall_ic"] is None) == (figures["labels"]["IC"] == 0)
    assert json.loads(json.dumps(slices)).keys() == slices.keys()


@pytest.mark.parametrize(
    ("items", "predicted", "tokens"), [([], [], None), (ITEMS[:1], [], None), (ITEMS[:1], [ND], [1, 2])]
)
def test_answers_and_lengths_belong_to_items(
    items: list[BenchItem], predicted: list[Label | None], tokens: list[int] | None
) -> None:
    with pytest.raises(ValueError, match=f"to {len(items)} items"):
        sliced(items, predicted, tokens)
