"""Templates, the prompts' version, and the shape of the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
from pydantic import BaseModel, ValidationError

from synuc import prompts, replies
from synuc.speaking import EXAMPLE, MEANING, Speaking
from synuc.types import Constraint, Dialogue, Label, NewConstraint, TaskHierarchy, Turn
from tests.scripted import a_trajectory

EXPLICIT = Constraint(type="explicit", dimension="d", value="v1", scope="main_task", evidence="e1", turn=1)
IMPLICIT = Constraint(type="implicit", dimension="d", value="v2", scope="subtask", evidence="e2", turn=2)
NEW = NewConstraint(type="implicit", dimension="d", value="v3", evidence="e3")
MESSAGE: dict[str, Any] = {"message": "What\nnow?"}
PAIR: dict[str, Any] = {"anchor": EXPLICIT, "new": NEW}
SCHEMA: dict[str, Any] = {"anchor": EXPLICIT, "anchor_id": "c1", "speaking": Speaking.KEY}
ASKED: dict[str, Any] = {"dialogue": Dialogue(turns=(Turn(user="u", assistant="a"),)), "follow_up": "What\nnow?"}
NEEDS: dict[str, dict[str, Any]] = {
    "system": {},
    "dialogue": {"dialogue": Dialogue(turns=(Turn(user="u", assistant="a"),), system="s")},
    "history": {
        "tasks": TaskHierarchy(active_main_task="m", active_subtask="s"),
        "constraints": (EXPLICIT, IMPLICIT),
    },
    "definitions": {},
    "detector": ASKED,
    "zero_shot": ASKED,
    "label_only": ASKED,
    "filter": {},
    "tasks": {},
    "constraints": {},
    "match": {"label": Label.IC, "speaking": tuple(Speaking)},
    "generate_er": SCHEMA,
    "generate_ic": SCHEMA | {"successes": (a_trajectory("t1"),), "failures": (a_trajectory("t2", success=False),)},
    "pair": {"label": Label.IC},
    "match_triplet": {"ids": ("c1", "c2"), "revised": True, "speaking": tuple(Speaking)},
    "realize_triplet": {
        "anchor": EXPLICIT,
        "things": "e3",
        "pairs": {"IC": NEW, "ER": NEW},
        "order": (Label.ND, Label.ER, Label.IC),
    },
    "realize_er": PAIR,
    "realize_ic": PAIR,
    "verify_anchor": {"label": Label.IC, **PAIR, **MESSAGE},
    "extract_new": MESSAGE,
    "judge_global": {
        "label": Label.IC,
        **PAIR,
        **MESSAGE,
        "continues": "new_task",
        "new_constraints": (NEW,),
    },
    "verify_direct": {"label": Label.IC, **MESSAGE},
    "same_constraint": {"first": "tone: formal", "second": "style:\nformal"},
    "curate": {"speaking": Speaking.KEY, "success": True, "candidates": (("t1", a_trajectory("t1")),), "k": 3},
}
"""Every template and the values it takes."""


def templates() -> set[str]:
    return {file.name.removesuffix(".md") for file in prompts.FOLDER.iterdir() if file.name.endswith(".md")}


def test_every_template_is_known_here() -> None:
    assert templates() == set(NEEDS)


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"label": label}) for name, values in NEEDS.items() if "label" in values for label in Label),
    *((name, {}) for name, values in NEEDS.items() if "label" not in values),
    *((name, {"anchor": IMPLICIT}) for name, values in NEEDS.items() if "anchor" in values),
    ("judge_global", {"label": Label.ND, "anchor": None, "new": None, "new_constraints": ()}),
    ("generate_ic", {"successes": (), "failures": ()}),
    ("curate", {"success": False}),
    ("match_triplet", {"revised": False}),
    ("realize_triplet", {"order": (Label.IC, Label.ND), "pairs": {"IC": NEW}}),
    ("realize_triplet", {"order": (Label.ER,), "pairs": {"ER": NEW}}),
    ("history", {"constraints": None}),
    ("history", {"constraints": ()}),
]


@pytest.mark.parametrize(("name", "values"), VARIANTS)
def test_every_template_renders(name: str, values: dict[str, Any]) -> None:
    text = prompts.render(name, **(NEEDS[name] | values))
    assert text.strip()
    # No template syntax, representation of an object or enum, or empty value is left over.
    for leftover in ("{{", "{%", "<synuc", "Label.", "Speaking.", "namespace(", "Constraint("):
        assert leftover not in text
    assert "\n\n\n" not in text


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, values in NEEDS.items() for key in values])
def test_a_missing_value_is_an_error(name: str, key: str) -> None:
    values = {k: v for k, v in NEEDS[name].items() if k != key}
    with pytest.raises(jinja2.UndefinedError, match=key):
        prompts.render(name, **values)


def test_a_job_ends_with_the_fields_of_its_answer_in_their_order() -> None:
    models: dict[str, type[BaseModel]] = {
        "filter": replies.Eligibility,
        "tasks": replies.Tasks,
        "match": replies.match_reply(("c1", "c2")),
        "generate_er": replies.GeneratedExplicit,
        "generate_ic": replies.Generated,
        "pair": replies.pair_reply(("c1", "c2"), False),
        "match_triplet": replies.match_reply(("c1", "c2")),
        "realize_triplet": replies.triplet_reply((Label.ND, Label.ER, Label.IC)),
        "realize_er": replies.Message,
        "realize_ic": replies.Message,
        "verify_anchor": replies.AnchorVerdict,
        "extract_new": replies.NewConstraints,
        "judge_global": replies.judgment_reply(("n1",)),
        "verify_direct": replies.Judgment,
        "curate": replies.curation_reply(("t1",), 3),
    }
    for name, model in models.items():
        asked = prompts.render(name, **NEEDS[name]).rpartition("Fields: ")[2]
        places = [asked.find(field) for field in model.model_fields]
        assert -1 not in places, name
        assert places == sorted(places), name
    asked = prompts.render("constraints").rpartition("Fields: ")[2]
    assert all(field in asked for field in replies.Historical.model_fields)


def test_er_and_ic_ask_for_different_things() -> None:
    for name in ("match", "pair", "verify_anchor", "judge_global"):
        er, ic = (prompts.render(name, **(NEEDS[name] | {"label": label})) for label in (Label.ER, Label.IC))
        assert er != ic


# The prompts' version


class Folder:
    """Stands in for the folder of templates."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def iterdir(self) -> Iterator[Path]:
        return self.path.iterdir()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the templates that `synuc.prompts` reads instead of its own."""
    for file in prompts.FOLDER.iterdir():
        if file.name.endswith(".md"):
            (tmp_path / file.name).write_text(file.read_text("utf-8"), "utf-8")
    prompts.version.cache_clear()
    monkeypatch.setattr(prompts, "FOLDER", Folder(tmp_path))
    yield tmp_path
    prompts.version.cache_clear()


def now() -> str:
    prompts.version.cache_clear()
    return prompts.version()


def test_the_version_is_stable(folder: Path) -> None:
    first = now()
    assert len(first) == 12
    assert int(first, 16) >= 0
    assert now() == first
    (folder / "notes.txt").write_text("not a template", "utf-8")
    assert now() == first


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_the_version_changes_with_every_template_of_synthesis(folder: Path, name: str) -> None:
    first = now()
    file = folder / f"{name}.md"
    file.write_text(file.read_text("utf-8") + "!", "utf-8")
    # Samples depend neither on the prompts of detectors nor on the judge's of their reward.
    others = ("detector", "definitions", "zero_shot", "label_only", "same_constraint")
    assert (now() == first) == (name in others)


def test_the_version_changes_with_the_schemas_and_the_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {now()}
    for texts in (MEANING, EXAMPLE):
        with monkeypatch.context() as patch:
            patch.setitem(texts, Speaking.KEY, "something else")
            seen.add(now())

    class Wider(replies.Judgment):
        doubts: str

    for name in ("Eligibility", "Tasks", "HistoricalConstraints", "NewConstraints", "Generated", "Message", "Judgment"):
        with monkeypatch.context() as patch:
            patch.setattr(replies, name, Wider)
            seen.add(now())
    assert len(seen) == 10


# The shape of the answers

IDS = ("x1", "x2")
SHAPES: dict[str, tuple[type[BaseModel], str]] = {
    "filter": (replies.Eligibility, "reason"),
    "tasks": (replies.Tasks, "reason"),
    # Each item begins with where and in which words it stands.
    "constraints": (replies.HistoricalConstraints, "reason"),
    "constraints item": (replies.Historical, "turn"),
    "extract_new": (replies.NewConstraints, "reason"),
    "extract_new item": (replies.New, "evidence"),
    "generate": (replies.Generated, "reason"),
    "generate ER": (replies.GeneratedExplicit, "reason"),
    "generate IC": (replies.GeneratedImplicit, "reason"),
    "realize": (replies.Message, "plan"),
    "verify_anchor": (replies.AnchorVerdict, "pair_analysis"),
    "judge_global ND": (replies.Judgment, "analysis"),
    "judge_global": (replies.judgment_reply(IDS), "analysis"),
    "judge_global, nothing found": (replies.judgment_reply(()), "analysis"),
    "match": (replies.match_reply(IDS), "reason"),
    "match, one candidate": (replies.match_reply(IDS[:1]), "reason"),
    "pair": (replies.pair_reply(IDS, False), "reason"),
    "pair ER": (replies.pair_reply(IDS, True), "reason"),
    "triplet": (replies.triplet_reply(tuple(Label)), "plan"),
    "triplet, one message": (replies.triplet_reply((Label.ER,)), "plan"),
    "curate": (replies.curation_reply(IDS, 3), "reason"),
}


def test_every_answer_is_here() -> None:
    def below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
        for child in model.__subclasses__():
            yield child
            yield from below(child)

    named = {m for m in below(replies.Reply) if m.__name__ in vars(replies)}
    assert named == {model for model, _ in SHAPES.values()} & named
    assert len(named) == 12


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema inside a JSON schema."""
    if isinstance(schema, list):
        for item in schema:
            yield from nodes(item)
    elif isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            if key not in ("enum", "required"):
                yield from nodes(list(value.values()) if key in ("properties", "$defs") else value)


@pytest.mark.parametrize("name", SHAPES)
def test_every_answer_is_bounded_and_complete(name: str) -> None:
    schema = SHAPES[name][0].model_json_schema()
    objects = 0
    for node in nodes(schema):
        kind = node.get("type")
        assert kind in {"object", "array", "string", "integer", "boolean", None}
        if kind == "string":
            assert {"maxLength", "enum", "const"} & node.keys(), node
        elif kind == "array":
            assert "maxItems" in node, node
        elif kind == "integer":
            assert {"minimum", "maximum"} <= node.keys(), node
        elif kind == "object":
            objects += 1
            assert node["required"] == list(node["properties"]), node
            assert node["additionalProperties"] is False, node
        elif kind is None:
            assert "$ref" in node, node
    assert objects


@pytest.mark.parametrize("name", SHAPES)
def test_reasons_come_before_verdicts(name: str) -> None:
    model, first = SHAPES[name]
    fields = list(model.model_json_schema()["properties"])
    assert fields[0] == first


def test_each_verdict_of_the_anchor_stage_follows_its_own_analysis() -> None:
    assert list(replies.AnchorVerdict.model_fields) == [
        "pair_analysis",
        "pair_holds",
        "message_analysis",
        "revision_signal",
        "message_holds",
    ]


def test_the_claimed_constraint_is_named_before_label_and_confidence() -> None:
    fields = list(replies.judgment_reply(IDS).model_fields)
    assert fields == ["analysis", "claimed_new", "label", "claim_holds", "confidence"]


@pytest.mark.parametrize(
    ("model", "field", "bad"),
    [
        (replies.match_reply(IDS), "constraint", "x3"),
        (replies.match_reply(IDS), "dimension", "tone"),
        (replies.judgment_reply(IDS), "claimed_new", "x3"),
        (replies.judgment_reply(()), "claimed_new", "x1"),
        (replies.judgment_reply(IDS), "confidence", 101),
        (replies.Judgment, "confidence", -1),
        (replies.Judgment, "label", "XX"),
        (replies.curation_reply(IDS, 1), "keep", ["x1", "x2"]),
        (replies.curation_reply(IDS, 2), "keep", ["x3"]),
        (replies.GeneratedExplicit, "type", "implicit"),
        (replies.GeneratedImplicit, "type", "explicit"),
        (replies.Generated, "dimension", "?!"),
        (replies.Generated, "value", "   "),
        (replies.Generated, "value", "v" * 161),
        (replies.Message, "message", " \n "),
    ],
)
def test_an_answer_outside_its_bounds_is_refused(model: type[BaseModel], field: str, bad: Any) -> None:
    good: dict[str, Any] = {
        "reason": "r",
        "analysis": "a",
        "plan": "p",
        "constraint": "x1",
        "dimension": "genre",
        "claimed_new": "none",
        "label": "IC",
        "claim_holds": True,
        "confidence": 100,
        "keep": ["x1"],
        "type": "explicit" if model is not replies.GeneratedImplicit else "implicit",
        "value": "v",
        "carrier": "c",
        "message": "m",
    }
    fields = {name: good[name] for name in model.model_fields}
    model.model_validate(fields)
    with pytest.raises(ValidationError, match=field):
        model.model_validate({**fields, field: bad})


@pytest.mark.parametrize(
    ("written", "read"), [("Content Scope", "content_scope"), ("tone/style", "tone_style"), ("受众", "受众")]
)
def test_dimensions_become_snake_case(written: str, read: str) -> None:
    fields = {"reason": "", "type": "explicit", "dimension": written, "value": "v", "carrier": "c"}
    assert replies.Generated.model_validate(fields).dimension == read


def test_schemas_are_plain_json() -> None:
    for model, _ in SHAPES.values():
        json.dumps(model.model_json_schema())
