"""Drives the method's programs with a scripted LLM and a real memory state: no engine, no actor, no clock.

By default a dialogue is eligible, has two explicit and two implicit constraints, and every sample is accepted with
q = 90. A script replaces or fails single answers; the driver keeps all that was asked, so that tests can read prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from synuc.config import Method
from synuc.effects import CommitUpdate, Fork, Program, ReadRepository, RecordTrajectory, ReleaseLease
from synuc.memory import MemoryState, Trajectory
from synuc.sample import Sample
from synuc.speaking import Speaking
from synuc.synthesis import synthesise
from synuc.types import CallFailed, Constraint, Dialogue, Label, LLMRequest, NewConstraint, Seed, Turn

T = TypeVar("T")
Answer = Mapping[str, Any] | CallFailed | Callable[[LLMRequest], Mapping[str, Any]]

EXPLICIT = ("about the lighthouse of Gorey", "no longer than 120 words")
IMPLICIT = ("nothing frightening at bedtime", "words a preschooler knows")
"""The values of the constraints that `constraints` answers by default: c1 and c2, c3 and c4."""
CARRIER = "the drowned sailors' ghosts"
FOLLOW_UP = "Now describe the night when the drowned sailors' ghosts climb the stairs."

ND, ER, IC = Label.ND, Label.ER, Label.IC
ALL = Method(alpha=1.0)
"""Every label for every eligible dialogue."""
BROKEN = CallFailed("unparseable", "no JSON in three attempts")
NO_CONSTRAINTS: dict[str, Any] = {"reason": "nothing", "constraints": []}


class Script:
    """What the LLM answers. `answers` maps a stage (`match`), a stage and label (`match/IC`) or a stage and key
    (`match/seed-1-IC`; the key is a sample's or, before routing, a seed's id) to fields that replace the default
    ones, to a function of the request that gives such fields, or to a `CallFailed`. The most specific one counts.
    """

    def __init__(self, answers: Mapping[str, Answer] | None = None) -> None:
        self.answers = dict(answers or {})
        for name in self.answers:
            if name.partition("/")[0] not in DEFAULTS:
                raise ValueError(f"no such stage: {name}")

    def reply(self, request: LLMRequest) -> BaseModel:
        fields = DEFAULTS[request.stage](request)
        names = (f"{request.stage}/{request.key}", f"{request.stage}/{label_of(request)}", request.stage)
        answer = next((self.answers[name] for name in names if name in self.answers), {})
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, CallFailed):
            raise answer
        return request.reply.model_validate({**fields, **answer})


def label_of(request: LLMRequest) -> str:
    """The label of the sample that a request belongs to, empty if it belongs to the dialogue or to the memory."""
    label = request.key.rpartition("-")[2]
    return label if label in Label.__members__ else ""


def choices(request: LLMRequest, name: str) -> list[str]:
    """The values that the reply's schema allows for a field, or for the items of a list field."""
    schema = request.reply.model_json_schema()["properties"][name]
    schema = schema.get("items", schema)
    return [schema["const"]] if "const" in schema else list(schema["enum"])


def _tasks(_: LLMRequest) -> dict[str, Any]:
    return {
        "reason": "one goal",
        "completed_main_tasks": [],
        "active_main_task": "write a bedtime story",
        "completed_subtasks": ["choose the place"],
        "active_subtask": "draft the story",
    }


def _constraints(_: LLMRequest) -> dict[str, Any]:
    named = zip(("content", "length", "mood", "vocabulary"), (*EXPLICIT, *IMPLICIT), strict=True)
    return {
        "reason": "by turn",
        "constraints": [
            {
                "turn": 1 + n % 2,
                "evidence": f"words of the user {n}",
                "type": "explicit" if n < 2 else "implicit",
                "dimension": dimension,
                "value": value,
                "scope": "main_task",
            }
            for n, (dimension, value) in enumerate(named)
        ],
    }


def _generate(request: LLMRequest) -> dict[str, Any]:
    kinds = choices(request, "type")
    return {
        "reason": "both can't hold",
        "type": "implicit" if "implicit" in kinds else "explicit",
        "dimension": "mood",
        "value": "ghosts that scare",
        "carrier": CARRIER,
    }


def _triplet(request: LLMRequest) -> dict[str, Any]:
    fields = {"plan": "short", "fits": "in another part"}
    texts = {f"message_{label.lower()}": f"{FOLLOW_UP} {label}" for label in Label}
    return {name: text for name, text in (fields | texts).items() if name in request.reply.model_fields}


def _extract_new(request: LLMRequest) -> dict[str, Any]:
    kind = "explicit" if request.key.endswith("-ER") else "implicit"
    found = {"evidence": "ghosts climb", "type": kind, "dimension": "mood", "value": "scary"}
    return {"reason": "a scene", "continues": "current_subtask", "constraints": [found]}


def _judge(request: LLMRequest) -> dict[str, Any]:
    return {"analysis": "as claimed", "label": label_of(request), "claim_holds": True, "confidence": 90}


def _judge_global(request: LLMRequest) -> dict[str, Any]:
    claimed = {"claimed_new": choices(request, "claimed_new")[0]} if label_of(request) != "ND" else {}
    return {**_judge(request), **claimed}


def _curate(request: LLMRequest) -> dict[str, Any]:
    most = request.reply.model_json_schema()["properties"]["keep"]["maxItems"]
    return {"reason": "the first ones", "keep": choices(request, "keep")[:most]}


DEFAULTS: dict[str, Callable[[LLMRequest], dict[str, Any]]] = {
    "filter": lambda _: {
        "reason": "a story",
        "category": "writing",
        "clear_goal": True,
        "persistent_constraints": True,
    },
    "tasks": _tasks,
    "constraints": _constraints,
    "match": lambda request: {
        "reason": "the clearest",
        "constraint": choices(request, "constraint")[0],
        "dimension": "key",
    },
    "generate": _generate,
    "pair": lambda request: {**_generate(request), "constraint": choices(request, "constraint")[0]},
    "realize": lambda _: {"plan": "short", "message": FOLLOW_UP},
    "realize_triplet": _triplet,
    "verify_anchor": lambda _: {
        "pair_analysis": "they exclude each other",
        "pair_holds": True,
        "message_analysis": "it brings the new one in",
        "revision_signal": False,
        "message_holds": True,
    },
    "extract_new": _extract_new,
    "judge_global": _judge_global,
    "verify_direct": _judge,
    "curate": _curate,
}


@dataclass
class Driver:
    """Carries out programs, forks one after the other. `effects` holds every effect in the order it was asked for."""

    script: Script = field(default_factory=Script)
    memory: MemoryState = field(default_factory=lambda: MemoryState(k=3, threshold=10))
    now: float = 1000.0
    lease_s: float = 600.0
    effects: list[Any] = field(default_factory=list)

    @property
    def requests(self) -> list[LLMRequest]:
        return [effect for effect in self.effects if isinstance(effect, LLMRequest)]

    def asked(self, stage: str, label: str | None = None) -> list[LLMRequest]:
        """The requests of a stage, and of a label if one is given."""
        return [r for r in self.requests if r.stage == stage and label in (None, label_of(r))]

    def the(self, stage: str, label: str | None = None) -> LLMRequest:
        """The one request of a stage."""
        (request,) = self.asked(stage, label)
        return request

    def stages(self, label: str | None = None) -> list[str]:
        return [r.stage for r in self.requests if label in (None, label_of(r))]

    def of_type(self, kind: type[T]) -> list[T]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def run(self, program: Program[T]) -> T:
        """What the program returns."""
        try:
            effect = next(program)
            while True:
                try:
                    result = self._carry_out(effect)
                except CallFailed as failure:
                    effect = program.throw(failure)
                else:
                    effect = program.send(result)
        except StopIteration as done:
            return cast(T, done.value)

    def _carry_out(self, effect: Any) -> Any:
        self.effects.append(effect)
        match effect:
            case LLMRequest():
                return self.script.reply(effect)
            case Fork():
                return [self.run(program) for program in effect.programs]
            case ReadRepository():
                return self.memory.view(effect.speaking)
            case RecordTrajectory():
                self.memory.record(effect.trajectory)
                return self.memory.lease(effect.trajectory.speaking, self.now, self.lease_s)
            case CommitUpdate():
                return self.memory.commit(effect.lease, effect.successes, effect.failures)
            case ReleaseLease():
                return self.memory.release(effect.lease)
        raise TypeError(f"no such effect: {effect!r}")

    def samples(self, seed: Seed, method: Method) -> dict[str, Sample]:
        """What `synthesise` makes of a seed, by label; `unrouted` if the call that routes it failed."""
        samples = self.run(synthesise(seed, method))
        by_label = {sample.label.value if sample.label else "unrouted": sample for sample in samples}
        assert len(by_label) == len(samples)
        return by_label


def prompt(request: LLMRequest) -> str:
    """All that a request shows to the model."""
    return "\n".join(message["content"] for message in request.messages)


def a_seed(id: str = "seed-1", turns: Iterable[tuple[str, str]] | None = None, system: str = "") -> Seed:
    """A dialogue of three turns, or of the given (user, assistant) pairs."""
    if turns is None:
        turns = (
            ("Write a bedtime story for my four-year-old.", "Where does it take place?"),
            ("At the lighthouse of Gorey, 120 words at most.", "Once upon a time there was a lamp."),
            ("Give the lamp a name.", "The lamp was called Lumi."),
        )
    dialogue = Dialogue(turns=tuple(Turn(user=user, assistant=answer) for user, answer in turns), system=system)
    return Seed(id=id, language="en", dialogue=dialogue, source="wildchat", origin="part-0.parquet:17")


def a_trajectory(id: str = "t", speaking: Speaking = Speaking.KEY, success: bool = True, **fields: Any) -> Trajectory:
    anchor = Constraint(
        type="explicit", dimension="tone", value=f"old of {id}", scope="main_task", evidence="words", turn=1
    )
    values: dict[str, Any] = {
        "id": id,
        "speaking": speaking,
        "language": "en",
        "context": f"task of {id}",
        "constraints": (anchor,),
        "anchor": anchor,
        "new": NewConstraint(type="implicit", dimension="tone", value=f"new of {id}", evidence="things"),
        "message": f"message of {id}",
        "success": success,
        "confidence": 90 if success else None,
        "reason": "" if success else f"reason of {id}",
    }
    return Trajectory(**{**values, **fields})


def only(*labels: Label, **fields: Any) -> Method:
    return Method(labels=labels, alpha=1.0, **fields)


def synthesised(method: Method, **answers: Answer) -> tuple[dict[str, Sample], Driver]:
    """The samples of `a_seed()` by label, and the driver that made them."""
    driver = Driver(Script(answers))
    return driver.samples(a_seed(), method), driver


def constraint(type: str, value: str, **fields: Any) -> dict[str, Any]:
    return {
        "turn": 1,
        "evidence": "words",
        "type": type,
        "dimension": "tone",
        "value": value,
        "scope": "subtask",
        **fields,
    }


def remembering(speaking: Speaking = Speaking.KEY) -> MemoryState:
    """A memory whose repository holds a success `good` and a failure `bad`, at version 1."""
    memory = MemoryState(k=3, threshold=2)
    memory.record(a_trajectory("good", speaking))
    memory.record(a_trajectory("bad", speaking, success=False))
    lease = memory.lease(speaking, 0.0, 1.0)
    assert lease is not None
    assert memory.commit(lease, ("good",), ("bad",))
    return memory
