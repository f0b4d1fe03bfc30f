"""The people of a project: the file that names them, how many there must be, and whether they suffice."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from review.config import ReviewError
from review.forms import Kind, Step
from review.states import NEEDED, ROLES, Role
from synuc.layers import Section, compose

BESIDES = {
    Role.ADJUDICATOR: " besides the two of an item",
    Role.EVALUATOR: " besides the two who write a candidate",
}
"""Whom a role's people can't be at the same item, in words. An adjudicator can be an evaluator, too."""


class PersonEntry(Section):
    """One person of a project."""

    name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
    roles: tuple[Role, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _lead_alone(self) -> Self:
        if Role.LEAD in self.roles and len(self.roles) > 1:
            raise ValueError(f"{self.name} is a lead, who sees every answer, and so can't label too: use two entries")
        return self


class People(Section):
    """The file of a project's people: `people: [{name: Ana, roles: [annotator, evaluator]}, ...]`."""

    people: tuple[PersonEntry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [person.name for person in self.people]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"{twice} is named twice; every person needs a name of their own")
        return self


def check_people(kind: Kind, people: People) -> None:
    """Make sure that these people can bring every item to its end, whoever takes it first.

    Raises:
        ReviewError: naming the role that lacks people.
    """
    named = {role: {person.name for person in people.people if role in person.roles} for role in Role}
    annotators = sorted(named[Role.ANNOTATOR])
    pairs = [set(pair) for pair in combinations(annotators, 2)]
    if not pairs:
        raise ReviewError(f"two people who label independently are needed, and {len(annotators)} annotators are named")
    if kind is not Kind.SPOT_CHECK and any(not named[Role.ADJUDICATOR] - pair for pair in pairs):
        raise ReviewError("an adjudicator is needed who isn't one of the two annotators of an item: name one more")
    evaluators = NEEDED[Step.REVIEW]
    if kind is Kind.BENCHMARK and any(len(named[Role.EVALUATOR] - pair) < evaluators for pair in pairs):
        raise ReviewError(f"{evaluators} evaluators are needed besides the two who write a candidate: name more")


def read_people(path: Path) -> People:
    """The people that a YAML file names.

    Raises:
        ConfigError: naming the key that is wrong.
    """
    return compose(People, [path])


def needed(kind: Kind) -> dict[Role, int]:
    """How many people of each role bring an item to its end; a lead may be there or not."""
    steps = {
        Kind.BENCHMARK: (Step.LABEL, Step.ADJUDICATE, Step.REVIEW),
        Kind.SPOT_CHECK: (Step.LABEL,),
        Kind.PAIRWISE: (Step.COMPARE, Step.ADJUDICATE),
    }
    return {ROLES[step]: NEEDED[step] for step in steps[kind]}


def fewest(kind: Kind) -> int:
    """How many people can do it, if those who aren't the annotators of an item have all other roles."""
    annotators, *others = needed(kind).values()
    return annotators + max(others, default=0)


def told(kind: Kind, there: Mapping[Role, int]) -> str:
    """How many people a project of this kind needs, and how many there are of each role, in a sentence or two."""
    wanted = ", ".join(f"{_people(role, n)}{BESIDES.get(role, '')}" for role, n in needed(kind).items())
    named = ", ".join(_people(role, there[role]) for role in Role if there.get(role))
    return f"People needed: {wanted}; {fewest(kind)} at least. There are {named}."


def _people(role: Role, number: int) -> str:
    return f"{number} {role}" + ("" if number == 1 else "s")
