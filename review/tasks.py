"""What a person does: take the next item, save a draft, answer, pass, take the last answer back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Select, and_, delete, exists, func, or_, select
from sqlalchemy.orm import Session

from review.auth import Caller
from review.checks import Finding, open_findings
from review.forms import Form, Kind, Step, verdict
from review.items import content_of, keep, load, state_of
from review.models import Answer, Claim, Draft, Item
from review.projects import note
from review.states import BARRING, NEEDED, ROLES, Act, Refused, State, after, check, sealing, undone

ORDER = (Step.ADJUDICATE, Step.REVIEW, Step.LABEL, Step.COMPARE, Step.TARGET)
"""What is given out first. Others wait for these, and nobody goes on with an item whose label they have just given, and
may want to take back, while there is something else to do. Items at other steps go to the people bound to them."""


class NotInHand(Refused):
    """To all who haven't looked at an item as it is now with it in their hands, whatever the reason: its step would
    tell them what others said of it, while they can still take back what they said themselves."""

    def __init__(self) -> None:
        super().__init__("not_in_hand", "this item isn't in your hands now")


class Faulty(Refused):
    """An answer that has to be mended, or confirmed, first."""

    def __init__(self, findings: Collection[Finding]) -> None:
        super().__init__("findings", "something in this answer has to be mended or confirmed")
        self.findings = tuple(findings)


def next_item(session: Session, caller: Caller, kind: Kind, now: float, claim_s: float) -> Item | None:
    """The item that the person should look at now, put into their hands; None if nothing is left for them."""
    mine = (
        select(Item.id)
        .join(Claim, Claim.item_id == Item.id)
        .where(Claim.person_id == caller.id, Claim.state.in_(("held", "bound")), Item.project_id == caller.project)
        .order_by(Claim.state.desc(), Claim.at, Claim.id)
    )
    for id in session.scalars(mine).all():
        begun = load(session, caller.project, id, lock=True)
        if _may(state_of(kind, begun), caller):
            return begun
    for step in ORDER:
        if ROLES[step] in caller.roles and (item := _open_item(session, caller, step, now - claim_s)):
            _take(session, item, caller, now, claim_s)
            return item
    return None


def answer(
    session: Session,
    caller: Caller,
    kind: Kind,
    id: int,
    step: Step,
    round: int,
    form: Form,
) -> None:
    """Take an answer. The same answer again changes nothing, so that a request whose reply was lost may be repeated.

    Raises:
        NotInHand: the item isn't in the person's hands.
        Faulty: it has to be mended or confirmed.
        Refused: it isn't of this step and round.
    """
    item = load(session, caller.project, id, lock=True)
    state = state_of(kind, item)
    act = Act(step, round, caller.id, form)
    if any(replace(given, sealed=False) == act for given in state.acts):
        return
    in_hand(session, caller, item, state)
    record(session, caller, item, state, act)


def record(session: Session, caller: Caller, item: Item, state: State, act: Act) -> None:
    """Take what the person says of a locked item, in whose hands it may be.

    Raises:
        Faulty: it has to be mended or confirmed.
        Refused: the person may not say that now.
    """
    check(state, caller.id, caller.roles)
    following = after(state, act)
    if found := open_findings(state.kind, act.form, content_of(item)):
        raise Faulty(found)
    keep(session, item, following)
    for table in (Claim, Draft):
        # Whoever is bound to the next step has a claim again.
        spare = Claim.state == "held" if table is Claim else Draft.id.is_not(None)
        session.execute(delete(table).where(table.item_id == item.id, table.person_id == caller.id, spare))
    form = act.form.model_dump(mode="json")
    said = {"step": act.step, "round": act.round, "verdict": verdict(act.form), "form": form}
    note(session, caller.project, "answer", said, caller.id, item.id)


def save_draft(session: Session, caller: Caller, kind: Kind, id: int, form: Mapping[str, Any], now: float) -> None:
    """Keep what the person has written so far, in place of what was kept before.

    The audit log tells that it changed, and not the words: leads read it, and a draft is its writer's alone.

    Raises:
        Refused: the item is unknown, or not in their hands.
    """
    item = load(session, caller.project, id, lock=True)
    in_hand(session, caller, item, state_of(kind, item))
    if _keep_draft(session, caller, item, form, now):
        note(session, caller.project, "draft", {"step": form["step"], "round": form["round"]}, caller.id, item.id)


def draft_of(session: Session, caller: Caller, item: Item) -> Draft | None:
    """What the person has written so far about an item."""
    return session.scalar(select(Draft).where(Draft.item_id == item.id, Draft.person_id == caller.id))


def skip(session: Session, caller: Caller, kind: Kind, id: int, reason: str, now: float) -> None:
    """Give an item back for others to answer; it isn't offered to this person again.

    Raises:
        Refused: nobody else could answer it, or it isn't in the person's hands.
    """
    item = load(session, caller.project, id, lock=True)
    claim = in_hand(session, caller, item, state_of(kind, item))
    if claim.state != "held":
        raise Refused("bound", "nobody else can answer this one; ask a lead to exclude or reopen it")
    claim.state, claim.at = "skipped", now
    note(session, caller.project, "skip", {"reason": reason}, caller.id, item.id)


def undo(session: Session, caller: Caller, kind: Kind, now: float) -> Item:
    """Take the person's last answer back: it becomes their draft, and the item is in their hands again.

    Raises:
        Refused: there is none, or it is too late.
    """
    last = session.scalar(
        select(Answer)
        .join(Item, Item.id == Answer.item_id)
        .where(Answer.person_id == caller.id, Answer.withdrawn.is_(None), Item.project_id == caller.project)
        .order_by(Answer.id.desc())
        .limit(1)
    )
    if last is None:
        raise Refused("nothing", "there is no answer of yours to take back")
    item = load(session, caller.project, last.item_id, lock=True)
    state = undone(state_of(kind, item), caller.id)
    keep(session, item, state)
    _claim(session, item, caller, now)
    _keep_draft(session, caller, item, {"step": last.step, "round": last.round, "form": last.form}, now)
    note(session, caller.project, "undo", {"step": last.step, "round": last.round}, caller.id, item.id)
    return item


def seal(session: Session, caller: Caller, item: Item, state: State) -> None:
    """Note that the person is being shown what became of their answers, so that these stay as they are."""
    sealed = sealing(state, caller.id)
    if steps := [act.step for act in sealed if not act.sealed]:
        acts = tuple(replace(act, sealed=True) if act in sealed else act for act in state.acts)
        keep(session, item, replace(state, acts=acts))
        note(session, caller.project, "seal", {"steps": steps}, caller.id, item.id)


def claimed(session: Session, caller: Caller, item: Item) -> Claim | None:
    """The person's claim to an item, if it is in their hands or will be once they look at it."""
    mine = (Claim.item_id == item.id, Claim.person_id == caller.id, Claim.state.in_(("held", "bound")))
    return session.scalar(select(Claim).where(*mine))


def in_hand(session: Session, caller: Caller, item: Item, state: State) -> Claim:
    """The claim of a person who has the item in hand and has looked at it as it is now. Raises NotInHand otherwise."""
    claim = claimed(session, caller, item)
    if claim is None or not all(act.sealed for act in sealing(state, caller.id)):
        raise NotInHand
    return claim


def _keep_draft(session: Session, caller: Caller, item: Item, form: Mapping[str, Any], now: float) -> bool:
    """Whether there was something new to keep."""
    draft = draft_of(session, caller, item)
    if draft is None:
        session.add(Draft(item_id=item.id, person_id=caller.id, form=dict(form), at=now))
    elif draft.form != form:
        draft.form, draft.at = dict(form), now
    else:
        return False
    return True


def _may(state: State, caller: Caller) -> bool:
    try:
        check(state, caller.id, caller.roles)
    except Refused:
        return False
    return True


def _open_item(session: Session, caller: Caller, step: Step, since: float) -> Item | None:
    """An item at this step that lacks a person, locked. Those that lack the fewest come first."""
    for answered in reversed(range(NEEDED[step])):
        while item := session.scalar(_lacking(caller, step, answered, since)):
            # While the row was being locked, others may have taken it.
            if answered + _others(session, item, caller, since) < NEEDED[step]:
                return item
    return None


def _lacking(caller: Caller, step: Step, answered: int, since: float) -> Select[Item]:
    own = (Answer.item_id == Item.id, Answer.person_id == caller.id, Answer.withdrawn.is_(None))
    had_a_part = or_(Answer.step.in_(BARRING.get(step, ())), and_(Answer.step == step, Answer.round == Item.round))
    query = select(Item).where(
        Item.project_id == caller.project,
        Item.step == step,
        Item.answered == answered,
        ~exists().where(*own, had_a_part),
        ~exists().where(Claim.item_id == Item.id, Claim.person_id == caller.id),
        _held(since, caller) < NEEDED[step] - answered,
    )
    if step is Step.TARGET:
        query = query.where(Item.round == 1)  # later rounds are bound to the two of the first
    return query.order_by(Item.position).limit(1).with_for_update(skip_locked=True, of=Item)


def _held(since: float, caller: Caller) -> Any:
    live = and_(Claim.item_id == Item.id, Claim.person_id != caller.id, Claim.state == "held", Claim.at > since)
    return select(func.count()).where(live).scalar_subquery()


def _others(session: Session, item: Item, caller: Caller, since: float) -> int:
    """How many others have the item in hand, if it may be in anybody's."""
    live = (Claim.item_id == item.id, Claim.person_id != caller.id, Claim.state == "held", Claim.at > since)
    return session.scalar(select(func.count()).where(*live)) or 0


def _take(session: Session, item: Item, caller: Caller, now: float, claim_s: float) -> None:
    """Put an item into the person's hands, instead of those that let it lie."""
    stale = (Claim.item_id == item.id, Claim.state == "held", Claim.at <= now - claim_s)
    session.execute(delete(Claim).where(*stale))
    _claim(session, item, caller, now)
    note(session, caller.project, "take", {"step": item.step, "round": item.round}, caller.id, item.id)


def _claim(session: Session, item: Item, caller: Caller, now: float) -> None:
    claim = session.scalar(select(Claim).where(Claim.item_id == item.id, Claim.person_id == caller.id))
    if claim is None:
        session.add(Claim(item_id=item.id, person_id=caller.id, state="held", at=now))
    elif claim.state == "skipped":
        claim.state, claim.at = "held", now
