"""What is remembered of conversations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.config import LedgerConfig
from serving.detection import Detection, Found, Span
from serving.ledger import CONSTRAINTS, ID_CHARS, BadId, Ledger


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def want(value: str, dimension: str = "tone", where: Span | None = None, kind: Any = "explicit") -> Found:
    return Found(type=kind, dimension=dimension, value=value, where=where)


def verdict(label: Any, listed: list[Found], new: list[Found], pair: tuple[Found, Found] | None = None) -> Detection:
    return Detection(
        label=label,
        constraints=tuple(listed),
        new_constraints=tuple(new),
        historical=pair[0] if pair else None,
        new=pair[1] if pair else None,
        mode="reasoned",
        model="m",
    )


KIDS, SHORT = want("for kids", "audience"), want("short", "length")
FORMAL, JARGON = want("formal"), want("full of jargon", "style", kind="implicit")
CONFLICT = verdict("IC", [KIDS, SHORT], [JARGON], (KIDS, JARGON))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    return Ledger(LedgerConfig(conversations=3, expire_s=60), clock)


def test_nd_adds_the_new_constraints_to_those_that_are_listed(ledger: Ledger) -> None:
    first = ledger.update("", "a", "", verdict("ND", [KIDS], [SHORT, want("FOR  kids", "audience")]), 2)
    assert first.constraints == (KIDS, SHORT)
    assert (first.turns, first.updated, first.verdicts) == (2, 1000.0, {"ND": 1})
    # The list of a later detection replaces all: the task of KIDS and SHORT is over.
    assert ledger.update("", "a", "", verdict("ND", [], [FORMAL]), 3).constraints == (FORMAL,)
    assert ledger.get("", "a") == ledger.update("", "b", "", verdict("ND", [], [FORMAL]), 3).model_copy(
        update={"id": "a", "verdicts": {"ND": 2}}
    )


def test_er_puts_the_new_constraint_in_the_place_of_the_old(ledger: Ledger) -> None:
    long = want("long", "length")
    after = ledger.update("", "a", "", verdict("ER", [KIDS, SHORT], [long, FORMAL], (SHORT, long)), 2)
    assert after.constraints == (KIDS, long, FORMAL)
    assert after.open_conflicts == ()


def test_ic_opens_a_conflict_and_leaves_the_old_constraint_active(ledger: Ledger) -> None:
    after = ledger.update("", "a", "", CONFLICT, 3)
    assert after.constraints == (KIDS, SHORT)
    [conflict] = after.open_conflicts
    assert (conflict.historical, conflict.new, conflict.turn) == (KIDS, JARGON, 3)


@pytest.mark.parametrize(
    ("later", "stays"),
    [
        (verdict("ND", [KIDS, SHORT, JARGON], [FORMAL]), True),
        (verdict("IC", [KIDS, SHORT, JARGON], [FORMAL], (SHORT, FORMAL)), True),
        (verdict("ER", [KIDS, SHORT, JARGON], [FORMAL], (SHORT, FORMAL)), True),
        (verdict("undetermined", [], []), True),
        (verdict("ND", [], []), True),
        (verdict("ER", [KIDS, SHORT, JARGON], [FORMAL], (KIDS, FORMAL)), False),
        (verdict("ER", [KIDS, SHORT, JARGON], [FORMAL], (JARGON, FORMAL)), False),
        (verdict("ND", [SHORT, JARGON], []), False),
        (verdict("ND", [KIDS, SHORT], []), False),
    ],
)
def test_a_conflict_stays_open_until_it_is_resolved(ledger: Ledger, later: Detection, stays: bool) -> None:
    [conflict] = ledger.update("", "a", "", CONFLICT, 3).open_conflicts
    assert (conflict in ledger.update("", "a", "", later, 4).open_conflicts) is stays


def test_a_conflict_is_open_once(ledger: Ledger) -> None:
    ledger.update("", "a", "", CONFLICT, 3)
    again = verdict("IC", [KIDS, SHORT, JARGON], [JARGON], (KIDS, JARGON))
    assert [conflict.turn for conflict in ledger.update("", "a", "", again, 4).open_conflicts] == [4]


def test_other_words_at_the_same_place_are_the_same_constraint(ledger: Ledger) -> None:
    here = Span(turn=1, start=4, end=20)
    kids = KIDS.model_copy(update={"where": here})
    ledger.update("", "a", "", verdict("IC", [kids], [JARGON], (kids, JARGON)), 3)
    overlapping = want("children", "audience", Span(turn=1, start=10, end=30))
    assert ledger.update("", "a", "", verdict("ND", [overlapping, JARGON], []), 4).open_conflicts
    elsewhere = want("children", "audience", Span(turn=2, start=10, end=30))
    assert not ledger.update("", "a", "", verdict("ND", [elsewhere, JARGON], []), 5).open_conflicts


@pytest.mark.parametrize("label", ["ND", "ER", "IC", "undetermined"])
def test_a_detection_without_lists_changes_no_constraint(ledger: Ledger, label: Any) -> None:
    before = ledger.update("", "a", "", CONFLICT, 3)
    fast = Detection(label=label, probabilities={}, mode="fast", model="m")
    after = ledger.update("", "a", "", fast, 4)
    assert (after.constraints, after.open_conflicts) == (before.constraints, before.open_conflicts)
    assert after.turns == 4
    assert sum(after.verdicts.values()) == 2


def test_the_longest_silent_conversation_is_forgotten_first(ledger: Ledger) -> None:
    for id in ("a", "b", "c", "a"):
        ledger.update("", id, "", CONFLICT, 1)
    ledger.get("", "b")  # looking is no message
    ledger.update("", "d", "", CONFLICT, 1)
    assert [ledger.get("", id) is not None for id in "abcd"] == [True, False, True, True]


def test_conversations_expire_without_a_message(ledger: Ledger, clock: Clock) -> None:
    ledger.update("", "a", "", CONFLICT, 1)
    clock.now += 59
    ledger.update("", "b", "", CONFLICT, 1)
    assert ledger.get("", "a") is not None
    clock.now += 1
    assert ledger.get("", "a") is None
    assert len(ledger) == 1
    clock.now += 60
    assert ledger.update("", "b", "", CONFLICT, 2).verdicts == {"IC": 1}


def test_none_is_kept_if_none_may_be(clock: Clock) -> None:
    ledger = Ledger(LedgerConfig(conversations=0), clock)
    assert ledger.update("", "a", "", CONFLICT, 1).constraints == (KIDS, SHORT)
    assert ledger.get("", "a") is None


@pytest.mark.parametrize("id", ["", "x" * (ID_CHARS + 1)])
def test_an_id_has_a_length(ledger: Ledger, id: str) -> None:
    with pytest.raises(BadId, match=f"{len(id)} characters; give 1 to {ID_CHARS}"):
        ledger.update("", id, "", CONFLICT, 1)
    assert ledger.update("", "x" * ID_CHARS, "", CONFLICT, 1)


constraints = st.builds(want, st.integers(0, 200).map(str), st.sampled_from(["tone", "length"]))
lists = st.lists(constraints, max_size=6) | st.integers(60, 90).map(lambda n: [want(str(i)) for i in range(n)])


@st.composite
def detections(draw: st.DrawFn) -> Detection:
    label = draw(st.sampled_from(["ND", "ER", "IC", "undetermined"]))
    listed, new = draw(lists), draw(lists)
    pair = (draw(st.sampled_from(listed)), draw(st.sampled_from(new))) if listed and new else None
    return verdict(label, listed, new, pair if label in ("ER", "IC") else None)


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), detections(), st.sampled_from([0, 1, 70])), max_size=25),
    st.integers(0, 4),
)
def test_no_order_of_updates_exceeds_the_bounds(updates: list[tuple[str, Detection, int]], room: int) -> None:
    clock = Clock()
    ledger = Ledger(LedgerConfig(conversations=room, expire_s=60), clock)
    for number, (id, detection, passed) in enumerate(updates, 1):
        clock.now += passed
        after = ledger.update("", id, "", detection, number)
        assert len(ledger) <= room
        assert len(after.constraints) <= CONSTRAINTS
        assert len(after.open_conflicts) <= CONSTRAINTS
        assert ledger.get("", id) == (after if room else None)
        assert all(clock.now - one.updated < 60 for other in "abcdef" if (one := ledger.get("", other)))
        if detection.label == "IC" and detection.historical and after.constraints == detection.constraints:
            assert detection.historical in after.constraints


def test_a_conversation_belongs_to_its_owner(ledger: Ledger) -> None:
    mine = ledger.update("me", "a", "m", CONFLICT, 3)
    assert ledger.get("you", "a") is None
    assert ledger.verdict("you", "a", "m") is None
    yours = ledger.update("you", "a", "m", verdict("ND", [], [FORMAL]), 1)
    assert (ledger.get("me", "a"), ledger.get("you", "a")) == (mine, yours)
    assert mine != yours


def test_the_verdict_on_the_latest_message_is_remembered(ledger: Ledger, clock: Clock) -> None:
    ledger.update("", "a", "first", verdict("ND", [], [FORMAL]), 1)
    ledger.update("", "a", "second", CONFLICT, 2)
    assert ledger.verdict("", "a", "second") == CONFLICT
    assert ledger.verdict("", "a", "first") is None
    assert ledger.verdict("", "b", "second") is None
    clock.now += 61
    assert ledger.verdict("", "a", "second") is None
