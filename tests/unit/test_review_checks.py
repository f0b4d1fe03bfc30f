"""What is found in an answer before it is taken (Appendix B.2)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from review.checks import findings, open_findings, signals
from review.content import Content, fingerprint
from review.forms import Kind, Labelled, Rewritten, Side, Why
from synuc.types import Dialogue, Label, Turn

TRIP = Content(
    dialogue=Dialogue(
        turns=(
            Turn(user="Plan a relaxing weekend trip for my wife and kids.", assistant="Gladly: the zoo, then a lake."),
            Turn(user="Please avoid crowded places, so that the kids enjoy it.", assistant="Then a quiet farm."),
        )
    ),
    follow_up="What should we pack?",
    subset="test",
)
REISE = Content(
    dialogue=Dialogue(turns=(Turn(user="帮我给外婆写一段手机使用说明，她快八十岁了。", assistant="好的，字大一点。"),)),
    follow_up="再加上怎么打电话。",
    subset="test",
)
GOOD: dict[str, Any] = {
    "goal": "Plan a family weekend.",
    "target": "IC",
    "why": {"text": "A trip that suits kids can't hold a late jazz show."},
    "follow_up": "Great. Please add a wine tasting and a late-night jazz show for all of us.",
}


def codes(content: Content = TRIP, **changes: Any) -> set[str]:
    record = {"history": fingerprint(content.dialogue), **GOOD, **changes}
    return {found.code for found in findings(Kind.BENCHMARK, Rewritten.model_validate(record), content)}


def test_a_good_record_passes() -> None:
    assert codes() == set()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"history": "another"}, "history_changed"),
        ({"goal": "  "}, "goal_missing"),
        ({"goal": "Plan a trip. Then pack."}, "goal_not_one_sentence"),
        ({"why": {"text": ""}}, "why_missing"),
        ({"follow_up": ""}, "follow_up_missing"),
        ({"follow_up": "what  should we pack?"}, "follow_up_repeated"),
        ({"follow_up": "Add a late show. This is an implicit conflict."}, "category_revealed"),
        ({"follow_up": "Add a late show, which contradicts the kids' bedtime."}, "conflict_explained"),
        ({"follow_up": "Instead, plan a late jazz show."}, "revision_signal"),
        ({"follow_up": "其实还是改成深夜爵士吧"}, "revision_signal"),
        ({"target": "ER"}, "no_revision_signal"),
        ({"follow_up": "Add a show. " * 60}, "long"),
        ({"follow_up": "再加一场深夜爵士演出。"}, "other_language"),
    ],
)
def test_each_requirement_is_checked(changes: dict[str, Any], code: str) -> None:
    assert code in codes(**changes)


def test_a_revision_says_so_in_both_languages() -> None:
    assert "no_revision_signal" not in codes(target="ER", follow_up="Forget the quiet farm, we want the big fair.")
    assert "no_revision_signal" not in codes(REISE, target="ER", follow_up="不用写给外婆了，改成写给程序员。")
    assert "revision_signal" in codes(REISE, follow_up="改为用 adb 命令清理预装应用。")
    assert "revision_signal" not in codes(REISE, follow_up="再加上用 adb 命令清理预装应用的步骤。")


def test_words_inside_of_others_are_no_signal() -> None:
    assert signals("Add a skyscraper and an unchanged exchange of notes.") == ()
    assert signals("We CHANGED OUR mind. I don’t want it.") == ("i don't want",)


def side(type: str, evidence: str) -> Side:
    return Side.model_validate({"type": type, "dimension": "audience", "value": "kids", "evidence": evidence})


def test_a_pair_is_complete_of_the_right_types_and_quoted() -> None:
    old, new = side("implicit", "wife and kids"), side("explicit", "late-night jazz")
    assert codes(why=Why(text="x", historical=old, new=new)) == set()
    assert codes(why=Why(text="x", historical=old)) == {"half_a_pair"}
    explicit = side("explicit", "wife and kids")
    assert codes(why=Why(text="x", historical=explicit, new=new)) == {"types_of_other_label"}
    invented = side("implicit", "with our teenagers")
    assert codes(why=Why(text="x", historical=invented, new=new)) == {"not_said"}


def test_an_annotator_says_why_it_is_a_conflict() -> None:
    def found(**values: Any) -> set[str]:
        return {one.code for one in findings(Kind.BENCHMARK, Labelled.model_validate(values), TRIP)}

    assert found(label="IC") == {"why_missing"}
    assert found(label="IC", why={"text": "kids"}) == set()
    assert found(label="ER") == found(label="ND") == set()
    assert found(label="ND", why={"text": "kids"}) == {"why_for_nd"}
    assert findings(Kind.SPOT_CHECK, Labelled(label=Label.IC), TRIP) == ()


def test_a_writer_may_stand_by_what_words_suggest_but_not_by_what_is_missing() -> None:
    record = {**GOOD, "history": fingerprint(TRIP.dialogue), "goal": "", "follow_up": "Instead of lunch, a jazz show."}
    form = Rewritten.model_validate({**record, "confirmed": ["revision_signal", "goal_missing"]})
    assert [found.code for found in open_findings(Kind.BENCHMARK, form, TRIP)] == ["goal_missing"]


@given(st.text(), st.text(), st.text(), st.sampled_from(["ER", "IC"]))
def test_whatever_is_written_gets_findings_and_never_both_of_a_contradiction(
    goal: str, why: str, follow_up: str, target: str
) -> None:
    found = codes(goal=goal, why={"text": why}, follow_up=follow_up, target=target)
    assert not {"revision_signal", "no_revision_signal"} <= found
    assert ("goal_missing" in found) == (not goal.replace("\x00", "").strip())
