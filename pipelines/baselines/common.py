"""What the baselines share: the targets, the layout of prompts, and the annotation that training needs.

Every baseline gets the seeds of a run, passes them through the same task filter and makes one sample for each label
that the method would make one for: the budget is the number of samples, not of calls. It writes the follow-up in its
own way; then one call, the same for all baselines, names the tasks and constraints that a training example is made of.
None of them has a verifier: a sample that was written is accepted, unless its annotation contradicts itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, TypeVar

import jinja2
from pydantic import BaseModel

from pipelines.baselines import replies
from synuc import prompts
from synuc.config import Method
from synuc.effects import Program
from synuc.folding import folded
from synuc.replies import Eligibility, Message
from synuc.sample import Outcome, Sample, Stage
from synuc.synthesis import blank_sample, synthesise
from synuc.types import (
    CallFailed,
    Constraint,
    ConstraintType,
    Dialogue,
    Label,
    LLMRequest,
    NewConstraint,
    Seed,
    TaskHierarchy,
)

FOLDER = files("pipelines").joinpath("baselines")

MESSAGE_TOKENS = 1200
"""Of an answer that holds a message, as in the method's own realisation."""

ANNOTATION_TOKENS = 2400
"""As much as the method's longest answer, so that no dialogue is too long for one of them only."""

ONCE_STAGES = ("refed_feedback", "designer_logic")
"""The calls that are made through `Once`: as many as there are references, however many dialogues there are."""

T = TypeVar("T")
Write = Callable[[Sample, Method], Program[Sample]]
"""A baseline's own part: the sample with its follow-up, and with its history where that grew."""


def targets(seed: Seed, method: Method, write: Write) -> Program[list[Sample]]:
    """All samples of one seed dialogue: the method's routing, then for every label `write` and the annotation."""

    def branches(
        seed: Seed, method: Method, eligibility: Eligibility | None, labels: tuple[Label, ...]
    ) -> tuple[Program[list[Sample]], ...]:
        blanks = [blank_sample(seed, label, seed.dialogue, eligibility) for label in labels]
        return tuple(_sample(blank, method, write) for blank in blanks)

    return (yield from synthesise(seed, method, branches))


def _sample(sample: Sample, method: Method, write: Write) -> Program[list[Sample]]:
    stage: Stage = "realize"
    try:
        sample = yield from write(sample, method)
        stage = "extract"
        reply = yield ask(
            "annotate",
            sample.id,
            replies.annotation_reply(sample.label),
            sample.dialogue,
            max_tokens=ANNOTATION_TOKENS,
            label=sample.label,
            message=sample.follow_up,
        )
    except CallFailed as failure:
        return [sample.failed(stage, failure)]
    return [_annotated(sample, reply)]


def _annotated(sample: Sample, reply: replies.Annotation) -> Sample:
    """The sample with its tasks, constraints and pair, accepted if the pair is one."""
    turns = len(sample.dialogue.turns)
    listed = [_historical(item.type, item, turns) for item in reply.constraints]
    sample = sample.model_copy(
        update={
            "tasks": TaskHierarchy(
                completed_main_tasks=tuple(reply.completed_main_tasks),
                active_main_task=reply.active_main_task,
                completed_subtasks=tuple(reply.completed_subtasks),
                active_subtask=reply.active_subtask,
            ),
            "constraints": tuple(sorted(listed, key=lambda c: c.type)),
            "continues": reply.continues,
            "new_constraints": tuple(NewConstraint(**new.model_dump()) for new in reply.new_constraints),
        }
    )
    if isinstance(reply, replies.PairAnnotation):
        old, new = reply.historical, reply.new
        sample = sample.model_copy(
            update={
                "anchor": _historical(reply.types[0], old, turns),
                "new": NewConstraint(
                    type=reply.types[1], dimension=new.dimension, value=new.value, evidence=new.evidence
                ),
            }
        )
        if folded(old.value) == folded(new.value):
            return sample.rejected("extract", f"the new constraint only repeats the old one: {new.value}")
        if reply.continues == "new_task":
            # ER and IC are relations within one task.
            return sample.rejected("extract", f"the message starts a new task: {reply.reason}")
    return sample.model_copy(update={"outcome": Outcome.ACCEPTED})


def _historical(type: ConstraintType, item: replies.Old, turns: int) -> Constraint:
    return Constraint(
        type=type,
        dimension=item.dimension,
        value=item.value,
        scope=item.scope,
        evidence=item.evidence,
        turn=min(item.turn, turns),
    )


def written(sample: Sample, reply: Message) -> Sample:
    """The sample with the message as its follow-up."""
    return sample.model_copy(update={"follow_up": reply.message})


def chosen(options: Sequence[T], sample: Sample, method: Method) -> T:
    """One of `options`, the same at every run, and over many samples each as often."""
    digest = hashlib.sha256(f"choose/{method.seed}/{sample.id}".encode()).digest()
    return options[int.from_bytes(digest[:8], "big") % len(options)]


def ask(
    template: str,
    key: str,
    reply: type[BaseModel],
    dialogue: Dialogue | None,
    *,
    max_tokens: int,
    temperature: float = 0.0,
    **values: Any,
) -> LLMRequest:
    """A call: constant system text, dialogue if there is one, then the template's job. Its stage is the template."""
    parts = [] if dialogue is None else [render("dialogue", dialogue=dialogue)]
    parts.append(render(template, **values).strip())
    return LLMRequest(
        stage=template,
        role="generator",
        key=key,
        messages=(
            {"role": "system", "content": render("baseline").strip()},
            {"role": "user", "content": "".join(parts)},
        ),
        reply=reply,
        max_tokens=max_tokens,
        temperature=temperature,
    )


def ask_for(
    sample: Sample,
    method: Method,
    template: str,
    reply: type[BaseModel] = Message,
    max_tokens: int = MESSAGE_TOKENS,
    **values: Any,
) -> LLMRequest:
    """A call of a sample's own: about its dialogue, for its label, as warm as the method generates."""
    temperature = method.generator_temperature
    values = {"label": sample.label, **values}
    return ask(template, sample.id, reply, sample.dialogue, max_tokens=max_tokens, temperature=temperature, **values)


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    return prompts.environment(prompts.sources(prompts.FOLDER) | prompts.sources(FOLDER.joinpath("prompts")))


def render(name: str, **values: Any) -> str:
    """The template `name` (without `.md`) of the baselines or of the method."""
    return _environment().get_template(f"{name}.md").render(**values)


@lru_cache(maxsize=1)
def version() -> str:
    """Twelve hex digits over all that baselines show a model: templates, references, the shape of the answers."""
    everything = [
        prompts.version(),
        prompts.sources(prompts.FOLDER),
        prompts.sources(FOLDER.joinpath("prompts")),
        FOLDER.joinpath("references.yaml").read_text("utf-8"),
        [model.model_json_schema() for model in replies.SHAPES],
    ]
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:12]
