"""What an export keeps: even, in proportion, whatever the order, and never without the smallest class."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.quality.choice import Candidate, ChoiceError, Selection, choose, evenly, in_proportion, left_out
from pipelines.quality.difficulty import difficulty
from synuc.types import Label

Sizes = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 40), min_size=1)
FOUND = {"x": difficulty(Label.IC, ["IC", "ND"])}


def candidates(*groups: tuple[int, str, str, str]) -> list[Candidate]:
    """So many samples of a label, relation and language."""
    return [
        Candidate(f"{label}-{relation}-{language}-{n}", {"label": label, "relation": relation, "language": language})
        for size, label, relation, language in groups
        for n in range(size)
    ]


def kept(given: list[Candidate], selection: Selection, key: str) -> Counter[str]:
    ids = choose(given, selection)
    return Counter(one.values[key] for one in given if one.id in ids)


@st.composite
def samples(draw: st.DrawFn) -> list[Candidate]:
    values = st.fixed_dictionaries(
        {
            "label": st.sampled_from(["ND", "ER", "IC"]),
            "relation": st.sampled_from(["H_I_N_I", "H_I_N_E", "none"]),
            "language": st.sampled_from(["en", "zh"]),
        }
    )
    return [Candidate(f"s{n}", one) for n, one in enumerate(draw(st.lists(values, min_size=1, max_size=40)))]


def test_places_by_hand() -> None:
    assert evenly({"a": 1, "b": 5, "c": 9}, 9) == {"a": 1, "b": 4, "c": 4}
    assert evenly({"a": 5, "b": 5}, 5) == {"a": 2, "b": 3}
    assert in_proportion({"a": 6, "b": 3, "c": 1}, 5) == {"a": 3, "b": 2, "c": 0}


@given(Sizes, st.data())
def test_places_are_all_given_and_never_more_than_there_are(sizes: dict[str, int], data: st.DataObject) -> None:
    n = data.draw(st.integers(0, sum(sizes.values())))
    for quotas in (evenly(sizes, n), in_proportion(sizes, n)):
        assert sum(quotas.values()) == n
        assert all(0 <= quotas[name] <= size for name, size in sizes.items())
    even = evenly(sizes, n)
    # Whoever has less than another by more than the rest has all it can.
    assert all(even[name] == sizes[name] or even[name] >= max(even.values()) - 1 for name in sizes)


def test_the_first_key_is_met_exactly_and_the_next_as_far_as_they_go() -> None:
    given = candidates(
        (6, "ND", "none", "en"),
        (5, "ER", "H_E_N_E", "en"),
        (2, "ER", "H_E_N_E", "zh"),
        (7, "IC", "H_I_N_I", "en"),
        (1, "IC", "H_I_N_E", "en"),
        (4, "IC", "H_E_N_I", "zh"),
    )
    selection = Selection(("label", "relation", "language"))
    assert kept(given, selection, "label") == {"ND": 6, "ER": 6, "IC": 6}
    ids = choose(given, selection)
    of_ic = Counter(one.values["relation"] for one in given if one.id in ids and one.values["label"] == "IC")
    assert of_ic == {"H_I_N_E": 1, "H_E_N_I": 2, "H_I_N_I": 3}
    of_er = Counter(one.values["language"] for one in given if one.id in ids and one.values["label"] == "ER")
    assert of_er == {"zh": 2, "en": 4}
    assert left_out(given, ids, selection)["label"] == {"ER": (6, 1), "IC": (6, 6), "ND": (6, 0)}


def test_strata_keep_their_shares() -> None:
    given = [
        Candidate(f"{label}{level}{n}", {"label": label, "difficulty": level})
        for label, level, size in (("ND", "easy", 10), ("IC", "easy", 30), ("IC", "hard", 20))
        for n in range(size)
    ]
    ids = choose(given, Selection(("label",), ("difficulty",), FOUND))
    of_ic = Counter(one.values["difficulty"] for one in given if one.id in ids and one.values["label"] == "IC")
    assert of_ic == {"easy": 6, "hard": 4}


@given(samples(), st.permutations(["label", "relation", "language"]), st.randoms())
def test_the_smallest_class_is_never_lost_and_the_order_never_counts(
    given: list[Candidate], keys: list[str], random: Random
) -> None:
    selection = Selection(tuple(keys))
    counts = Counter(one.values[keys[0]] for one in given)
    assert kept(given, selection, keys[0]) == dict.fromkeys(counts, min(counts.values()))
    shuffled = list(given)
    random.shuffle(shuffled)
    assert choose(shuffled, selection) == choose(given, selection)
    ids = choose(given, selection)
    for values in left_out(given, ids, selection).values():
        assert sum(here for here, _ in values.values()) == len(ids)
        assert sum(here + out for here, out in values.values()) == len(given)


def test_without_keys_everything_is_kept() -> None:
    given = candidates((3, "ND", "none", "en"), (1, "IC", "H_I_N_I", "zh"))
    assert choose(given, Selection(())) == {one.id for one in given}


@pytest.mark.parametrize(
    ("balance", "stratify", "words"),
    [
        (("labels",), (), "by labels: choose of label, relation"),
        (("label", ""), (), "by nothing"),
        (("label", "label"), (), "label is given twice"),
        (("label",), ("label",), "label is given twice"),
        ((), ("label",), "give --balance too"),
        (("difficulty",), (), "two or more runs of synuc eval uc"),
        (("label",), ("difficulty",), "two or more runs of synuc eval uc"),
    ],
)
def test_keys_that_make_no_sense_are_a_problem(balance: tuple[str, ...], stratify: tuple[str, ...], words: str) -> None:
    with pytest.raises(ChoiceError, match=words):
        Selection(balance, stratify)
