"""How far a project is, and how far its people agree (paper, Appendices B and D)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from review.forms import Kind, Step
from review.models import Answer, Item, Person
from review.states import ENDS, NEEDED, Role

Figures = dict[str, Any]
ALL = "all"


def progress(session: Session, project: int) -> Figures:
    """`items`, `finished`; `steps`: how many are where, by language; `results` of those done; answers by `people`."""
    query = select(Item.language, Item.step, func.count()).where(Item.project_id == project)
    rows = session.execute(query.group_by(Item.language, Item.step)).all()
    steps: dict[str, Counter[str]] = defaultdict(Counter)
    for language, step, number in rows:
        steps[language][step] += number
        steps[ALL][step] += number
    results = select(Item.result, func.count()).where(Item.project_id == project, Item.step == Step.DONE)
    done = select(Person.name, func.count(Answer.id)).join(Answer, Answer.person_id == Person.id)
    mine = done.where(Person.project_id == project, Answer.withdrawn.is_(None)).group_by(Person.name)
    return {
        "items": sum(steps[ALL].values()),
        "finished": sum(steps[ALL][step] for step in ENDS),
        "steps": {language: dict(counts) for language, counts in sorted(steps.items())},
        "results": {result or "disputed": n for result, n in session.execute(results.group_by(Item.result))},
        "people": dict(session.execute(mine).all()),
    }


def roles(session: Session, project: int) -> Counter[Role]:
    """How many people have each role."""
    given = session.scalars(select(Person.roles).where(Person.project_id == project))
    return Counter(Role(role) for person in given for role in person.split(","))


def discreet(progress: Figures, name: str) -> Figures:
    """What annotators may know of the progress: where items stand would tell them what others said.

    An item is `judged`, and counts as finished, once two people have judged it independently.
    """
    steps = {}
    for language, counts in progress["steps"].items():
        waiting = sum(counts.get(step, 0) for step in (Step.LABEL, Step.COMPARE))
        steps[language] = {"waiting": waiting, "judged": sum(counts.values()) - waiting}
    people = {name: progress["people"].get(name, 0)}
    return {**progress, "finished": steps[ALL]["judged"], "steps": steps, "results": {}, "people": people}


def agreement(session: Session, project: int, kind: Kind, intervals: bool = False) -> Figures:
    """How far people agree, over all items and by language. None stands where nothing can be compared yet.

    `labels` (or `comparisons`): raw agreement and kappa of the two who judge independently. `reviews`: three-way exact
    and average pairwise agreement of the evaluators over all candidates. `synthetic`: of the reviewers' common label
    with the synthetic one, and `found`, how often each synthetic label was given which.
    """
    step = Step.COMPARE if kind is Kind.PAIRWISE else Step.LABEL
    answers = _complete(session, project, step)
    name = "comparisons" if kind is Kind.PAIRWISE else "labels"
    figures: Figures = {name: _by_language([(language, said) for language, _, said in answers], intervals)}
    if kind is Kind.BENCHMARK:
        reviews = _complete(session, project, Step.REVIEW)
        opinions = [(language, [word[at] for word in said]) for language, _, said in reviews for at in (0, 1)]
        figures["reviews"] = _by_language(opinions, intervals)
    if kind is Kind.SPOT_CHECK:
        figures |= _against_synthetic(session, project, answers, intervals)
    return figures


def _complete(session: Session, project: int, step: Step) -> list[tuple[str, int, list[str]]]:
    """Language, item and verdicts, ordered by person, of each round of a step that all have answered."""
    query = (
        select(Item.language, Item.id, Answer.round, Answer.verdict)
        .join(Answer, Answer.item_id == Item.id)
        .where(Item.project_id == project, Answer.step == step, Answer.withdrawn.is_(None))
        .order_by(Item.id, Answer.round, Answer.person_id)
    )
    rounds: dict[tuple[str, int, int], list[str]] = defaultdict(list)
    for language, item, round, verdict in session.execute(query):
        rounds[language, item, round].append(verdict)
    return [(key[0], key[1], said) for key, said in rounds.items() if len(said) == NEEDED[step]]


def _by_language(rows: Iterable[tuple[str, Sequence[str]]], intervals: bool) -> Figures | None:
    groups: dict[str, list[Sequence[str]]] = defaultdict(list)
    for language, said in rows:
        groups[language].append(said)
        groups[ALL].append(said)
    if not groups:
        return None
    # scikit-learn takes a second or two to load, and a server can do that once somebody wants figures.
    from eval.agreement import agreement as agreed

    return {
        name: agreed(*map(list, zip(*said, strict=True)), intervals=intervals) for name, said in sorted(groups.items())
    }


def _against_synthetic(
    session: Session, project: int, answers: Sequence[tuple[str, int, list[str]]], intervals: bool
) -> Figures:
    query = select(Item.id, Item.content["synthetic"].as_string()).where(Item.project_id == project)
    synthetic: Mapping[int, str] = dict(session.execute(query).all())
    pairs = [(language, (synthetic[item], said[0])) for language, item, said in answers if len(set(said)) == 1]
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for _, item, said in answers:
        found[synthetic[item]][said[0] if len(set(said)) == 1 else "disputed"] += 1
    return {
        "synthetic": _by_language(pairs, intervals),
        "found": {label: dict(counts) for label, counts in sorted(found.items())},
    }
