"""The way of an item through a project, as pure functions: who may say what when, and what follows (Appendix B.1).

An item's state is what its acts make of it, one after the other, so no order of actions leaves it in two states.

    benchmark    label (2, blind) -> adjudicate (1, if they differ) -> done, unless it is ND:
                 target (2, blind; until they agree) -> done if it stays ND, else
                 rewrite (the same 2, blind) -> review (3 others) -> vote (the same 3, if both were accepted) -> done;
                 if none was accepted, rewrite again
    spot-check   label (2, blind) -> done
    pairwise     compare (2, blind) -> adjudicate (1, blind, if they differ) -> done
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from review.forms import Compared, Excluded, Form, Kind, Labelled, Proposed, Reviewed, Rewritten, Step, Voted, form_of
from synuc.types import Label

APPROVALS = 2
"""Of three evaluators, those who must approve of a candidate."""


class Role(StrEnum):
    """What a person may do in a project. A lead sees everything and labels nothing."""

    ANNOTATOR = "annotator"
    ADJUDICATOR = "adjudicator"
    EVALUATOR = "evaluator"
    LEAD = "lead"


NEEDED = {
    Step.LABEL: 2,
    Step.COMPARE: 2,
    Step.ADJUDICATE: 1,
    Step.TARGET: 2,
    Step.REWRITE: 2,
    Step.REVIEW: 3,
    Step.VOTE: 3,
}
"""How many people answer at each step."""

ROLES = {
    Step.LABEL: Role.ANNOTATOR,
    Step.COMPARE: Role.ANNOTATOR,
    Step.ADJUDICATE: Role.ADJUDICATOR,
    Step.TARGET: Role.ANNOTATOR,
    Step.REWRITE: Role.ANNOTATOR,
    Step.REVIEW: Role.EVALUATOR,
    Step.VOTE: Role.EVALUATOR,
}
"""Whose step it is."""

BARRING = {
    Step.ADJUDICATE: (Step.LABEL, Step.COMPARE),
    Step.REVIEW: (Step.TARGET, Step.REWRITE),
}
"""Steps in which whoever had a part is barred from another one."""

ENDS = (Step.DONE, Step.EXCLUDED)


class Refused(Exception):
    """An act that isn't allowed now: `code` for programs, the message for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Act:
    """What a person said at a step. `sealed`: the person has since seen what others said, and can't take it back."""

    step: Step
    round: int
    person: int
    form: Form
    sealed: bool = False


@dataclass(frozen=True)
class State:
    """Where an item stands, and how it came there.

    `round` counts the rounds of a step that can repeat. `result` is the final label or verdict, None where there is
    none yet, or where a spot check's reviewers differ. `chosen` is the rewrite that became the item.
    """

    kind: Kind
    step: Step
    round: int = 1
    acts: tuple[Act, ...] = ()
    result: str | None = None
    chosen: Rewritten | None = None

    def at(self, step: Step, round: int | None = None) -> tuple[Act, ...]:
        """The acts of a step, of one round or of all, ordered by person, so that the order tells nothing."""
        acts = [act for act in self.acts if act.step is step and round in (None, act.round)]
        return tuple(sorted(acts, key=lambda act: (act.round, act.person)))

    @property
    def current(self) -> tuple[Act, ...]:
        return self.at(self.step, self.round)

    @property
    def open(self) -> bool:
        return self.step not in ENDS


def begin(kind: Kind) -> State:
    """The state of a new item."""
    return State(kind, Step.COMPARE if kind is Kind.PAIRWISE else Step.LABEL)


def replay(kind: Kind, acts: Sequence[Act]) -> State:
    """What the acts, in their order, make of an item. Raises Refused, if one of them was never allowed."""
    state = begin(kind)
    for act in acts:
        state = after(state, act)
    return state


def bound(state: State) -> frozenset[int]:
    """The people who alone may answer now; empty where anyone with the role may."""
    match state.step:
        case Step.TARGET if state.round > 1:
            before = state.at(Step.TARGET, state.round - 1)
        case Step.REWRITE:
            before = state.at(Step.TARGET)
        case Step.VOTE:
            before = state.at(Step.REVIEW, state.round)
        case _:
            before = ()
    return frozenset(act.person for act in before)


def check(state: State, person: int, roles: Collection[Role]) -> None:
    """Make sure that a person may answer now.

    Raises:
        Refused: with the reason.
    """
    if not state.open:
        raise Refused("finished", "this item is finished")
    if person in {act.person for act in state.current}:
        raise Refused("answered", "you have answered already; others have to do so first")
    if reason := _unasked(state, person, roles):
        raise reason


def _unasked(state: State, person: int, roles: Collection[Role]) -> Refused | None:
    """Why the step isn't this person's, if it isn't."""
    if ROLES[state.step] not in roles:
        return Refused("role", f"this item now waits for the {ROLES[state.step]}s")
    only = bound(state)
    if only and person not in only:
        return Refused("others", "this item is in the hands of others")
    if any(act.person == person for step in BARRING.get(state.step, ()) for act in state.at(step)):
        return Refused("part", "you had a part in what is to be judged here")
    return None


def after(state: State, act: Act) -> State:
    """The state once somebody has said something. Roles are the caller's to check, with `check`.

    Raises:
        Refused: the act isn't one of this step and round, or the person may not answer.
    """
    if act.step is Step.EXCLUDED and isinstance(act.form, Excluded):
        if state.step is Step.EXCLUDED:
            raise Refused("finished", "this item is excluded already")
        return replace(state, step=Step.EXCLUDED, acts=(*state.acts, act), result=None, chosen=None)
    if state.open and (act.step, act.round) != (state.step, state.round):
        raise Refused("moved", "this item has moved on; your draft is kept")
    check(state, act.person, tuple(Role))
    if not isinstance(act.form, form_of(state.kind, state.step)):
        raise Refused("form", f"that is no answer of the step {state.step}")
    if isinstance(act.form, Rewritten) and act.form.target is not target(state):
        raise Refused("target", f"the agreed category is {target(state)}")
    state = replace(state, acts=(*state.acts, act))
    return _next(state) if len(state.current) == NEEDED[state.step] else state


def target(state: State) -> Label | None:
    """The category that the annotators agreed on; None before they did."""
    proposed = state.at(Step.TARGET)[-2:]
    targets = {act.form.target for act in proposed if isinstance(act.form, Proposed)}
    return targets.pop() if len(proposed) == 2 and len(targets) == 1 else None


def candidates(state: State) -> tuple[Rewritten, ...]:
    """The two rewrites of the round under review, in the order in which all evaluators see them."""
    return tuple(act.form for act in state.at(Step.REWRITE, state.round) if isinstance(act.form, Rewritten))


def accepted(state: State, round: int) -> tuple[bool, bool]:
    """Whether each of the two candidates of a round has enough approvals."""
    reviews = [act.form for act in state.at(Step.REVIEW, round) if isinstance(act.form, Reviewed)]
    first, second = (
        sum(opinion.approve for opinion in opinions) >= APPROVALS
        for opinions in ([form.first for form in reviews], [form.second for form in reviews])
    )
    return first, second


def visible(state: State, person: int, roles: Collection[Role]) -> tuple[Act, ...]:
    """What a person may see of what was said: their own, what the step they are asked at is about, and all once the
    item is done, if they had a part in it. A lead sees everything.
    """
    if Role.LEAD in roles:
        return state.acts
    own = tuple(act for act in state.acts if act.person == person)
    if not state.open:
        return state.acts if own else ()
    match state.step:
        case Step.ADJUDICATE if state.kind is Kind.BENCHMARK:
            about = state.at(Step.LABEL)
        case Step.TARGET:
            about = tuple(act for act in state.at(Step.TARGET) if act.round < state.round)
        case Step.REWRITE:
            earlier = (*state.at(Step.REWRITE), *state.at(Step.REVIEW))
            about = tuple(act for act in earlier if act.round < state.round)
        case Step.REVIEW | Step.VOTE:
            about = state.at(Step.REWRITE, state.round)
        case _:
            about = ()
    shown = () if _unasked(state, person, roles) else about
    return tuple(act for act in state.acts if act in own or act in shown)


def sealing(state: State, person: int) -> tuple[Act, ...]:
    """The person's acts that they can't take back once they have looked at the item: all but one at the present step.

    That an item has moved on, and where to, tells something of what others said.
    """
    return tuple(act for act in state.acts if act.person == person and act not in state.current)


def undone(state: State, person: int) -> State:
    """The state without the last act, if it is the person's and can be taken back.

    Raises:
        Refused: somebody has said something since, or the person has seen what others said.
    """
    if not state.acts or state.acts[-1].person != person or state.acts[-1].step is Step.EXCLUDED:
        raise Refused("too_late", "somebody has answered since; ask a lead to reopen the item")
    if state.acts[-1].sealed:
        raise Refused("seen", "you have looked at what became of it since; ask a lead to reopen the item")
    return replay(state.kind, state.acts[:-1])


def reopened(state: State, step: Step) -> State:
    """The state before anything was said at `step` or later.

    Raises:
        Refused: nothing was said at that step.
    """
    first = next((at for at, act in enumerate(state.acts) if act.step is step), None)
    if first is None:
        raise Refused("not_reached", f"nothing was said at the step {step}")
    return replay(state.kind, state.acts[:first])


def _next(state: State) -> State:
    """Where a step leads once all its answers are there."""
    forms = [act.form for act in state.current]
    match state.step:
        case Step.LABEL | Step.COMPARE:
            return _agreed(state, [_verdict(form) for form in forms])
        case Step.ADJUDICATE:
            return _settled(state, _verdict(forms[0]))
        case Step.TARGET:
            if (agreed := target(state)) is None:
                return replace(state, round=state.round + 1)
            return _done(state, "ND") if agreed is Label.ND else replace(state, step=Step.REWRITE, round=1)
        case Step.REWRITE:
            return replace(state, step=Step.REVIEW)
        case Step.REVIEW:
            passed = accepted(state, state.round)
            if all(passed):
                return replace(state, step=Step.VOTE)
            if not any(passed):
                return replace(state, step=Step.REWRITE, round=state.round + 1)
            return _chosen(state, passed.index(True))
        case _:
            votes = Counter(form.better for form in forms if isinstance(form, Voted))
            return _chosen(state, ("first", "second").index(votes.most_common(1)[0][0]))


def _verdict(form: Form) -> str:
    assert isinstance(form, Labelled | Compared)
    return form.label.value if isinstance(form, Labelled) else form.verdict


def _agreed(state: State, verdicts: list[str]) -> State:
    if len(set(verdicts)) == 1:
        return _settled(state, verdicts[0])
    if state.kind is Kind.SPOT_CHECK:
        return _done(state, None)
    return replace(state, step=Step.ADJUDICATE, round=1)


def _settled(state: State, result: str) -> State:
    if state.kind is Kind.BENCHMARK and result == Label.ND:
        return replace(state, step=Step.TARGET, round=1)
    return _done(state, result)


def _done(state: State, result: str | None) -> State:
    return replace(state, step=Step.DONE, round=1, result=result)


def _chosen(state: State, which: int) -> State:
    chosen = candidates(state)[which]
    return replace(_done(state, chosen.target.value), chosen=chosen)
