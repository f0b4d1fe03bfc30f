"""The way of an item through a review project: whatever people do, in whatever order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from review.forms import (
    Compared,
    Excluded,
    Form,
    Kind,
    Labelled,
    Opinion,
    Proposed,
    Reviewed,
    Rewritten,
    Step,
    Voted,
    Why,
)
from review.states import (
    APPROVALS,
    ENDS,
    NEEDED,
    ROLES,
    Act,
    Refused,
    Role,
    State,
    accepted,
    after,
    begin,
    bound,
    check,
    reopened,
    replay,
    sealing,
    target,
    undone,
    visible,
)
from synuc.types import Label

ANA, BO, CAI, DEE, ELI, FAY, LEA = range(1, 8)
ALL = tuple(role for role in Role if role is not Role.LEAD)
PEOPLE = dict.fromkeys((ANA, BO, CAI, DEE, ELI, FAY), ALL)


def labelled(label: str) -> Labelled:
    return Labelled(label=Label(label), why=Why(text="because") if label != "ND" else None)


def rewritten(label: str, text: str = "And a jazz show at night.") -> Rewritten:
    return Rewritten(goal="A trip.", target=Label(label), why=Why(text="kids"), follow_up=text, history="h")


def reviewed(first: bool, second: bool) -> Reviewed:
    return Reviewed(first=Opinion(approve=first), second=Opinion(approve=second))


def says(state: State, *answers: tuple[int, Form]) -> State:
    for person, form in answers:
        state = after(state, Act(state.step, state.round, person, form))
    return state


def at_rewriting(label: str = "IC") -> State:
    state = says(begin(Kind.BENCHMARK), (ANA, labelled("ND")), (BO, labelled("ND")))
    return says(state, (CAI, Proposed(target=Label(label))), (BO, Proposed(target=Label(label))))


def at_review() -> State:
    return says(at_rewriting(), (BO, rewritten("IC", "one")), (CAI, rewritten("IC", "two")))


def test_two_who_agree_settle_a_conflict() -> None:
    state = says(begin(Kind.BENCHMARK), (ANA, labelled("IC")), (BO, labelled("IC")))
    assert (state.step, state.result) == (Step.DONE, "IC")


def test_a_third_settles_what_two_dispute() -> None:
    state = says(begin(Kind.BENCHMARK), (ANA, labelled("IC")), (BO, labelled("ER")))
    assert state.step is Step.ADJUDICATE
    with pytest.raises(Refused, match="had a part"):
        check(state, ANA, ALL)
    assert says(state, (CAI, labelled("ER"))).result == "ER"
    assert says(state, (CAI, labelled("ND"))).step is Step.TARGET


def test_those_who_differ_about_the_category_discuss_it_until_they_agree() -> None:
    state = says(begin(Kind.BENCHMARK), (ANA, labelled("ND")), (BO, labelled("ND")))
    state = says(state, (ANA, Proposed(target=Label.IC, note="late show")), (BO, Proposed(target=Label.ER)))
    assert (state.step, state.round, bound(state)) == (Step.TARGET, 2, frozenset({ANA, BO}))
    assert [act.person for act in visible(state, BO, ALL) if act.step is Step.TARGET] == [ANA, BO]
    with pytest.raises(Refused, match="hands of others"):
        check(state, CAI, ALL)
    state = says(state, (BO, Proposed(target=Label.IC)), (ANA, Proposed(target=Label.IC)))
    assert (state.step, state.round, target(state)) == (Step.REWRITE, 1, Label.IC)


def test_a_dialogue_may_stay_as_it_is() -> None:
    assert at_rewriting("ND").step is Step.DONE
    assert at_rewriting("ND").result == "ND"


def test_a_rewrite_is_of_the_agreed_category() -> None:
    with pytest.raises(Refused, match="agreed category is IC"):
        says(at_rewriting("IC"), (BO, rewritten("ER")))


@pytest.mark.parametrize("writer", [BO, CAI])
def test_nobody_reviews_what_they_wrote(writer: int) -> None:
    with pytest.raises(Refused, match="had a part"):
        check(at_review(), writer, ALL)


@pytest.mark.parametrize(
    ("approvals", "step", "chosen"),
    [
        ([(True, False), (True, False), (False, False)], Step.DONE, "one"),
        ([(False, True), (True, True), (False, False)], Step.DONE, "two"),
        ([(True, True), (True, True), (False, False)], Step.VOTE, None),
        ([(True, False), (False, True), (False, False)], Step.REWRITE, None),
    ],
)
def test_two_approvals_of_three_accept_a_candidate(
    approvals: list[tuple[bool, bool]], step: Step, chosen: str | None
) -> None:
    opinions = zip((ANA, DEE, ELI), approvals, strict=True)
    state = says(at_review(), *((person, reviewed(*each)) for person, each in opinions))
    assert state.step is step
    assert (state.chosen and state.chosen.follow_up) == chosen
    assert state.round == (2 if step is Step.REWRITE else 1)


def test_the_evaluators_vote_between_two_accepted_candidates() -> None:
    state = says(at_review(), *((person, reviewed(True, True)) for person in (ANA, DEE, ELI)))
    with pytest.raises(Refused, match="hands of others"):
        check(state, FAY, ALL)
    votes = ("first", "second", "second")
    state = says(state, *((p, Voted(better=v)) for p, v in zip((ELI, ANA, DEE), votes, strict=True)))
    assert state.chosen is not None
    assert state.chosen.follow_up == "two"
    assert state.result == "IC"


def test_a_spot_check_ends_with_two_labels() -> None:
    state = says(begin(Kind.SPOT_CHECK), (ANA, labelled("ND")), (BO, labelled("ER")))
    assert (state.step, state.result) == (Step.DONE, None)
    assert says(begin(Kind.SPOT_CHECK), (ANA, labelled("ND")), (BO, labelled("ND"))).result == "ND"


def test_a_disputed_comparison_is_decided_independently() -> None:
    state = says(begin(Kind.PAIRWISE), (ANA, Compared(verdict="win")), (BO, Compared(verdict="tie")))
    assert state.step is Step.ADJUDICATE
    assert visible(state, CAI, ALL) == ()
    assert says(state, (CAI, Compared(verdict="loss"))).result == "loss"


def test_the_second_annotator_knows_nothing_of_the_first() -> None:
    state = says(begin(Kind.BENCHMARK), (ANA, labelled("IC")))
    assert visible(state, BO, ALL) == ()
    assert len(visible(state, LEA, (Role.LEAD,))) == 1


def test_an_answer_can_be_taken_back_until_somebody_has_answered_since() -> None:
    state = says(begin(Kind.BENCHMARK), (ANA, labelled("IC")))
    assert undone(state, ANA) == begin(Kind.BENCHMARK)
    state = says(state, (BO, labelled("ER")))
    with pytest.raises(Refused, match="answered since"):
        undone(state, ANA)
    assert undone(state, BO).step is Step.LABEL


def test_who_has_seen_the_others_can_take_nothing_back() -> None:
    state = says(begin(Kind.BENCHMARK), (ANA, labelled("IC")), (BO, labelled("IC")))
    assert [act.person for act in sealing(state, BO)] == [BO]
    sealed = replay(state.kind, [*state.acts[:1], Act(Step.LABEL, 1, BO, labelled("IC"), sealed=True)])
    with pytest.raises(Refused, match="looked at"):
        undone(sealed, BO)


def test_a_lead_excludes_and_reopens() -> None:
    state = at_review()
    gone = after(state, Act(Step.EXCLUDED, 1, LEA, Excluded(reason="private data")))
    assert (gone.step, gone.result) == (Step.EXCLUDED, None)
    with pytest.raises(Refused):
        check(gone, ANA, ALL)
    assert reopened(gone, Step.EXCLUDED) == state
    assert reopened(gone, Step.TARGET).step is Step.TARGET
    assert reopened(gone, Step.LABEL) == begin(Kind.BENCHMARK)
    with pytest.raises(Refused, match="nothing was said"):
        reopened(state, Step.VOTE)


labels = st.sampled_from(["ND", "ER", "IC"]).map(labelled)
FORMS: dict[type[Any], st.SearchStrategy[Any]] = {
    Labelled: labels,
    Proposed: st.sampled_from(list(Label)).map(lambda label: Proposed(target=label)),
    Rewritten: st.builds(rewritten, st.sampled_from(["ER", "IC"]), st.sampled_from(["one", "two"])),
    Reviewed: st.builds(reviewed, st.booleans(), st.booleans()),
    Voted: st.sampled_from(["first", "second"]).map(lambda better: Voted(better=better)),
    Compared: st.sampled_from(["win", "tie", "loss"]).map(lambda verdict: Compared(verdict=verdict)),
    Excluded: st.just(Excluded(reason="unsuitable")),
}
anything = st.one_of(*FORMS.values())


def fitting(state: State) -> st.SearchStrategy[Any]:
    """Mostly an answer that the step asks for, with the category that was agreed on."""
    if state.step is Step.REWRITE:
        return st.builds(rewritten, st.just(str(target(state))), st.sampled_from(["one", "two"]))
    wanted = {
        Step.LABEL: Labelled,
        Step.COMPARE: Compared,
        Step.ADJUDICATE: Compared if state.kind is Kind.PAIRWISE else Labelled,
        Step.TARGET: Proposed,
        Step.REVIEW: Reviewed,
        Step.VOTE: Voted,
    }
    return FORMS[wanted[state.step]] if state.step in wanted else anything


@settings(max_examples=300)
@given(st.data())
def test_no_order_of_actions_leaves_an_item_in_two_states(data: st.DataObject) -> None:
    state = begin(data.draw(st.sampled_from(list(Kind))))
    for _ in range(data.draw(st.integers(1, 30))):
        person = data.draw(st.sampled_from(list(PEOPLE)))
        before = state
        action = data.draw(st.sampled_from(["answer"] * 12 + ["stray", "undo", "reopen", "exclude"]))
        try:
            state = ACTIONS[action](data, state, person)
        except Refused:
            assert state is before  # what is refused changes nothing
        _holds_together(state)


def _holds_together(state: State) -> None:
    assert replay(state.kind, state.acts) == state  # the state is what was said, and nothing else
    assert state.open == (state.step not in ENDS)
    said = [(act.step, act.round, act.person) for act in state.acts]
    assert len(set(said)) == len(said)
    if state.open:
        assert len(state.current) < NEEDED[state.step]
        assert (state.result, state.chosen) == (None, None)
    for step in NEEDED:
        for round in {act.round for act in state.acts if act.step is step}:
            acts = state.at(step, round)
            assert len(acts) <= NEEDED[step]
            if (step, round) != (state.step, state.round) and state.step is not Step.EXCLUDED:
                assert len(acts) == NEEDED[step]  # nothing goes on before all have answered
    writers = {act.person for act in state.at(Step.REWRITE)}
    assert not writers & {act.person for act in (*state.at(Step.REVIEW), *state.at(Step.VOTE))}
    assert len(writers) <= 2
    if state.chosen:
        assert any(accepted(state, act.round) != (False, False) for act in state.at(Step.REVIEW))
        approvals = [sum(yes) for yes in _approvals(state)]
        assert max(approvals) >= APPROVALS
        assert state.result == state.chosen.target
    _blind(state)


def _approvals(state: State) -> list[list[bool]]:
    last = max(act.round for act in state.at(Step.REVIEW))
    forms = [act.form for act in state.at(Step.REVIEW, last) if isinstance(act.form, Reviewed)]
    return [[form.first.approve for form in forms], [form.second.approve for form in forms]]


def _blind(state: State) -> None:
    """As long as a step is open, nobody sees what another has said at it."""
    if not state.open:
        return
    for person in PEOPLE:
        for act in visible(state, person, ALL):
            assert act.person == person or (act.step, act.round) != (state.step, state.round)


def _answer(data: st.DataObject, state: State, person: int) -> State:
    if not state.open:
        raise Refused("finished", "")
    check(state, person, [ROLES[state.step]])
    return after(state, Act(state.step, state.round, person, data.draw(fitting(state))))


def _stray(data: st.DataObject, state: State, person: int) -> State:
    act = Act(data.draw(st.sampled_from(list(Step))), data.draw(st.integers(1, 3)), person, data.draw(anything))
    return after(state, act)


def _exclude(data: st.DataObject, state: State, person: int) -> State:
    return after(state, Act(Step.EXCLUDED, 1, LEA, Excluded(reason="unsuitable")))


ACTIONS: dict[str, Callable[[st.DataObject, State, int], State]] = {
    "answer": _answer,
    "stray": _stray,
    "undo": lambda data, state, person: undone(state, person),
    "reopen": lambda data, state, person: reopened(state, data.draw(st.sampled_from(list(Step)))),
    "exclude": _exclude,
}
