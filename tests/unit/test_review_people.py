"""The people of a review project: how many are needed, and the file that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from review.config import ReviewError
from review.forms import Kind
from review.people import People, check_people, fewest, needed, told
from review.states import Role
from synuc.layers import ConfigError, compose
from tests.reviewing import ROLES


@pytest.mark.parametrize(
    ("kind", "roles", "message"),
    [
        (Kind.BENCHMARK, {"Ana": ("annotator",)}, "two people"),
        (Kind.PAIRWISE, {"Ana": ("annotator",), "Bo": ("annotator", "adjudicator")}, "an adjudicator is needed"),
        (Kind.BENCHMARK, {**ROLES, "Fay": ("lead",), "Eli": ("lead",)}, "3 evaluators"),
    ],
)
def test_people_who_cant_finish_are_refused(kind: Kind, roles: dict[str, tuple[str, ...]], message: str) -> None:
    people = [{"name": name, "roles": does} for name, does in roles.items()]
    with pytest.raises(ReviewError, match=message):
        check_people(kind, People.model_validate({"people": people}))


def test_enough_people_pass() -> None:
    people = [{"name": name, "roles": does} for name, does in ROLES.items()]
    for kind in Kind:
        check_people(kind, People.model_validate({"people": people}))


@pytest.mark.parametrize(
    ("people", "message"),
    [
        ([{"name": "Ana", "roles": ["lead", "annotator"]}], "lead"),
        ([{"name": "Ana", "roles": ["annotator"]}] * 2, "named twice"),
        ([{"name": "Ana", "roles": ["anotator"]}], "roles"),
        ([{"name": "Ana", "role": ["annotator"]}], "did you mean"),
    ],
)
def test_a_wrong_file_of_people_is_explained(tmp_path: Path, people: list[dict[str, Any]], message: str) -> None:
    path = tmp_path / "people.yaml"
    path.write_text(yaml.safe_dump({"people": people}), "utf-8")
    with pytest.raises(ConfigError, match=message):
        compose(People, [path])


@pytest.mark.parametrize("kind", Kind)
def test_the_fewest_people_are_enough_and_fewer_are_not(kind: Kind) -> None:
    def named(number: int) -> People:
        roles = [role for role in Role if role is not Role.LEAD]
        return People.model_validate({"people": [{"name": f"p{n}", "roles": roles} for n in range(number)]})

    check_people(kind, named(fewest(kind)))
    with pytest.raises(ReviewError):
        check_people(kind, named(fewest(kind) - 1))


def test_who_is_needed_is_said_in_words() -> None:
    assert needed(Kind.PAIRWISE) == {Role.ANNOTATOR: 2, Role.ADJUDICATOR: 1}
    assert told(Kind.BENCHMARK, {Role.ANNOTATOR: 3, Role.EVALUATOR: 4, Role.ADJUDICATOR: 1}) == (
        "People needed: 2 annotators, 1 adjudicator besides the two of an item, 3 evaluators besides the two who write "
        "a candidate; 5 at least. There are 3 annotators, 1 adjudicator, 4 evaluators."
    )
    assert told(Kind.SPOT_CHECK, {Role.ANNOTATOR: 2, Role.LEAD: 1}) == (
        "People needed: 2 annotators; 2 at least. There are 2 annotators, 1 lead."
    )
