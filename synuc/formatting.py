"""Training examples from accepted samples, and the detector's message and answer (paper, section 5.2 and Appendix E).

The detector is shown one user message and answers in five sections. A value takes one line and every line has its
place, so an answer has exactly one reading. `parse_answer` accepts what `format_answer` writes and nothing else; only
whitespace, unbroken control tokens and an empty `<think></think>` block in front make no difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, ValidationError, field_validator, model_validator

from synuc import prompts
from synuc.neutralise import neutralise
from synuc.sample import Outcome, Sample
from synuc.types import (
    Constraint,
    ConstraintType,
    Dialogue,
    Frozen,
    Label,
    NewConstraint,
    Relation,
    TaskHierarchy,
    TaskLevel,
)


class Retention(StrEnum):
    """How much of the assistant's responses in the history is shown (paper, section 7.2)."""

    FULL = "full"
    PARTIAL = "partial"
    OMIT = "omit"


HEAD, TAIL = 200, 100
"""The characters of a response that partial retention keeps at the beginning and at the end."""

NEAR = 20
"""How many characters a cut may move to fall on whitespace."""

OMITTED = "[assistant response omitted]"


def retain(dialogue: Dialogue, retention: Retention = Retention.PARTIAL) -> Dialogue:
    """The dialogue with its assistant responses cut to the setting; what the user wrote stays whole."""
    if retention is Retention.FULL:
        return dialogue
    turns = tuple(
        turn.model_copy(update={"assistant": OMITTED if retention is Retention.OMIT else _partial(turn.assistant)})
        for turn in dialogue.turns
    )
    return dialogue.model_copy(update={"turns": turns})


def _partial(text: str) -> str:
    head, tail = text[:HEAD], text[-TAIL:]
    if space := re.search(rf"\s\S{{0,{NEAR - 1}}}\Z", head):
        head = head[: space.start()]
    if space := re.match(rf"\S{{0,{NEAR - 1}}}\s", tail):
        tail = tail[space.end() :]
    short = f"{head} [… {len(text) - len(head) - len(tail):,} characters omitted …] {tail}"
    return short if len(short) < len(text) else text


def detector_messages(
    dialogue: Dialogue, follow_up: str, retention: Retention = Retention.PARTIAL
) -> list[dict[str, str]]:
    """What the detector is shown in training, evaluation and serving: one user message, the follow-up last.

    Control tokens in it are broken (`synuc.neutralise`). Whoever knows the tokenizer breaks its further ones too.
    """
    content = prompts.render("detector", dialogue=retain(dialogue, retention), follow_up=follow_up)
    return [{"role": "user", "content": neutralise(content.strip())}]


Prompt = Literal["trained", "zero_shot"]
"""The form that our detectors were trained on, or a short one for models that weren't. The labels are the same."""

Asked = Literal["reasoned", "label"]
"""Reason, then give a label; or the label at once, with the probability of each."""


def messages_for(
    dialogue: Dialogue, follow_up: str, retention: Retention, prompt: Prompt, mode: Asked = "reasoned"
) -> list[dict[str, str]]:
    """What a model is asked about a follow-up: one user message, with the dialogue and then the follow-up.

    The trained form is the same in both modes; to get the label at once, the answer is begun with `[Final Judgment]`.
    """
    if prompt == "trained":
        return detector_messages(dialogue, follow_up, retention)
    name = "zero_shot" if mode == "reasoned" else "label_only"
    content = prompts.render(name, dialogue=retain(dialogue, retention), follow_up=follow_up)
    return [{"role": "user", "content": neutralise(content.strip())}]


TASK_LEVEL = "[Task Level]"
HISTORICAL = "[Historical Constraints]"
NEW = "[New Constraints]"
ANALYSIS = "[Constraint Compatibility Analysis]"
JUDGMENT = "[Final Judgment]"
HEADINGS = (TASK_LEVEL, HISTORICAL, NEW, ANALYSIS, JUDGMENT)


def _value(text: str) -> str:
    """`text` as a value of an answer: one line, no section heading, no control token, not empty."""
    text = " ".join(text.split())
    for heading in HEADINGS:
        text = text.replace(heading, f"({heading[1:-1]})")
    return neutralise(text) or "unspecified"


def _dimension(text: str) -> str:
    # As in `synuc.replies`; a sample read from a file can hold any text.
    return re.sub(r"\W+", "_", text.casefold()).strip("_") or "unspecified"


Value = Annotated[str, AfterValidator(_value)]
Dimension = Annotated[str, AfterValidator(_dimension)]


class Named(Frozen):
    """A constraint as an answer names it."""

    type: ConstraintType
    dimension: Dimension
    value: Value

    def __str__(self) -> str:
        return f"{self.type} {self.dimension}: {self.value}"


class Item(Named):
    """A constraint as an answer lists it: an implicit one with what it is inferred from."""

    inferred_from: Value | None = None

    @model_validator(mode="after")
    def _evidence(self) -> Self:
        if (self.inferred_from is None) is not (self.type == "explicit"):
            raise ValueError("implicit constraints, and only they, say what they are inferred from")
        return self

    @property
    def named(self) -> Named:
        return Named(type=self.type, dimension=self.dimension, value=self.value)


class Answer(Frozen):
    """A detector's answer. Its texts are normalised when it is made; one that contradicts itself can't be made."""

    label: Label
    tasks: TaskHierarchy
    continues: TaskLevel
    historical: tuple[Item, ...]
    new: tuple[Item, ...]
    analysis: Value
    relation: Relation | None = None
    anchor: Named | None = None
    new_constraint: Named | None = None

    @field_validator("tasks")
    @classmethod
    def _normalised(cls, tasks: TaskHierarchy) -> TaskHierarchy:
        return TaskHierarchy(
            completed_main_tasks=tuple(map(_value, tasks.completed_main_tasks)),
            active_main_task=_value(tasks.active_main_task),
            completed_subtasks=tuple(map(_value, tasks.completed_subtasks)),
            active_subtask=_value(tasks.active_subtask),
        )

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.label is Label.ND:
            if (self.anchor, self.new_constraint, self.relation) != (None, None, None):
                raise ValueError("Normal Dialogue has no pair")
            return self
        if self.anchor is None or self.new_constraint is None or self.relation is None:
            raise ValueError(f"{self.label.words} needs a pair and its relation")
        if self.relation is not Relation.of(self.anchor.type, self.new_constraint.type):
            raise ValueError(f"the pair's types are not those of {self.relation.value}")
        if self.relation.label is not self.label:
            raise ValueError(f"{self.relation.value} is not {self.label.words}")
        if self.anchor not in [item.named for item in self.historical]:
            raise ValueError("the pair's historical constraint is not listed")
        if self.new_constraint not in [item.named for item in self.new]:
            raise ValueError("the pair's new constraint is not listed")
        return self


@dataclass(frozen=True)
class Unparseable:
    """A text that is no answer, and why."""

    reason: str


def answer_of(sample: Sample) -> Answer:
    """The answer that an accepted sample teaches.

    Where the verifier didn't run (ablation), the pair itself stands in: its constraints are added to the lists that
    lack them; the follow-up continues the level of the anchor's scope, or the main task if there is no pair; and a
    sentence about the label is the analysis if the sample has none.

    Raises:
        ValueError: the sample is not accepted, or lacks the tasks or the pair that its label needs.
    """
    if sample.outcome is not Outcome.ACCEPTED or sample.label is None or sample.tasks is None:
        raise ValueError(f"sample {sample.id}: only an accepted sample with a label and tasks teaches an answer")
    # In the order in which the verifier saw them: c1, c2, … and n1, n2, …
    historical = [_item(c) for c in sample.constraints]
    new = [_item(c) for c in sample.new_constraints]
    analysis = sample.judgment.analysis if sample.judgment else ""
    if sample.continues is not None:  # else the verifier was shown no ids
        analysis = _without_ids(analysis, historical, new)
    anchor = claimed = None
    if sample.label is not Label.ND and sample.anchor is not None and sample.new is not None:
        anchor, claimed = _item(sample.anchor), _item(sample.new)
        historical = _including(historical, anchor)
        new = _including(new, claimed)
    level: TaskLevel = "current_main_task"
    if sample.anchor is not None and sample.anchor.scope == "subtask":
        level = "current_subtask"
    return Answer(
        label=sample.label,
        tasks=sample.tasks,
        continues=sample.continues or level,
        historical=_explicit_first(historical),
        new=_explicit_first(new),
        analysis=analysis if analysis.strip() else _sentence(sample.label, anchor, claimed),
        relation=Relation.of(anchor.type, claimed.type) if anchor and claimed else None,
        anchor=anchor.named if anchor else None,
        new_constraint=claimed.named if claimed else None,
    )


def _item(constraint: Constraint | NewConstraint) -> Item:
    return Item(
        type=constraint.type,
        dimension=constraint.dimension,
        value=constraint.value,
        inferred_from=constraint.evidence if constraint.type == "implicit" else None,
    )


def _including(items: list[Item], item: Item) -> list[Item]:
    return items if item.named in [other.named for other in items] else [*items, item]


def _explicit_first(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(sorted(items, key=lambda item: item.type))


def _without_ids(analysis: str, historical: list[Item], new: list[Item]) -> str:
    """The verifier's analysis with its ids (c1, n2) replaced by the constraints they stand for, in quotes."""
    texts = {
        f"{letter}{number}": f'"{item.dimension}: {item.value}"'
        for letter, items in (("c", historical), ("n", new))
        for number, item in enumerate(items, 1)
    }
    # ASCII word borders: in Chinese text an id touches its neighbours.
    return re.sub(r"\b[cn][1-9][0-9]*\b", lambda match: texts.get(match[0], match[0]), analysis, flags=re.ASCII)


def _sentence(label: Label, anchor: Item | None, new: Item | None) -> str:
    if anchor is None or new is None:
        return "The follow-up can be met together with every constraint that is still valid."
    pair = f'"{new.dimension}: {new.value}"', f'"{anchor.dimension}: {anchor.value}"'
    if label is Label.ER:
        return "The follow-up openly puts {} in the place of {}.".format(*pair)
    return "The follow-up brings in {}, which can't hold together with {}, and admits no change.".format(*pair)


def format_answer(answer: Answer) -> str:
    """The text of an answer: five sections, the label alone on the last line."""
    tasks = answer.tasks
    lines = [
        TASK_LEVEL,
        *_task_lines("Completed main tasks", tasks.completed_main_tasks),
        f"Active main task: {tasks.active_main_task}",
        *_task_lines("Completed subtasks", tasks.completed_subtasks),
        f"Active subtask: {tasks.active_subtask}",
        f"The follow-up continues: {answer.continues}",
        "",
        HISTORICAL,
        *_item_lines(answer.historical),
        "",
        NEW,
        *_item_lines(answer.new),
        "",
        ANALYSIS,
        answer.analysis,
    ]
    if answer.relation is not None:
        lines += [
            f"Historical constraint: {answer.anchor}",
            f"New constraint: {answer.new_constraint}",
            f"Relation: {answer.relation.value}",
        ]
    return "\n".join([*lines, "", JUDGMENT, answer.label.words])


def _task_lines(name: str, tasks: tuple[str, ...]) -> list[str]:
    return [f"{name}:", *(f"- {task}" for task in tasks)] if tasks else [f"{name}: none"]


def _item_lines(items: tuple[Item, ...]) -> list[str]:
    lines = []
    for item in items:
        lines.append(f"- {item}")
        if item.inferred_from is not None:
            lines.append(f"  inferred from: {item.inferred_from}")
    return lines or ["none"]


# The sections, their lines stripped. Values hold no line break, so `.` ends where the value ends.
_NAMED = r"(explicit|implicit) (\w+): (.+)"
_ITEM = rf"- {_NAMED}(?:\ninferred from: (.+))?"
_TASKS = re.compile(
    r"Completed main tasks:( none|(?:\n- .+)+)\n"
    r"Active main task: (.+)\n"
    r"Completed subtasks:( none|(?:\n- .+)+)\n"
    r"Active subtask: (.+)\n"
    rf"The follow-up continues: ({'|'.join(get_args(TaskLevel))})"
)
_ITEMS = re.compile(rf"none|{_ITEM}(?:\n{_ITEM})*")
_COMPATIBILITY = re.compile(
    rf"(.+)(?:\nHistorical constraint: {_NAMED}\nNew constraint: {_NAMED}\nRelation: ({'|'.join(Relation)}))?"
)
_NO_THOUGHT = re.compile(r"\A\s*<think>\s*</think>")


def parse_answer(text: str) -> Answer | Unparseable:
    """The answer that `text` is. Never raises, and never guesses: what doesn't follow the form has no label.

    An empty `<think></think>` block may stand in front (templates of reasoning models write one). Whitespace around
    the text and its lines, its amount inside a line, and blank lines make no difference.
    """
    text = _NO_THOUGHT.sub("", text)
    lines = [neutralise(" ".join(line.split())) for line in text.splitlines() if line.strip()]
    try:
        answer = _read(lines)
    except _Malformed as malformed:
        return Unparseable(str(malformed))
    except ValidationError as error:
        return Unparseable(error.errors()[0]["msg"].removeprefix("Value error, "))
    if [line.strip() for line in format_answer(answer).splitlines() if line] != lines:
        return Unparseable("a value is not in its normal form")
    return answer


class _Malformed(Exception):
    """Raised where a text leaves the form of an answer."""


def _read(lines: list[str]) -> Answer:
    starts = [number for number, line in enumerate(lines) if line in HEADINGS]
    if tuple(lines[start] for start in starts) != HEADINGS:
        raise _Malformed("the five sections are not there once each and in order")
    if starts[0] != 0:
        raise _Malformed("text before the first section")
    ends = [*starts[1:], len(lines)]
    sections = ["\n".join(lines[start + 1 : end]) for start, end in zip(starts, ends, strict=True)]
    levels, historical, new, analysis, judgment = sections

    label = next((label for label in Label if label.words == judgment), None)
    if label is None:
        raise _Malformed(f"{JUDGMENT} is not one label")
    done, active, subtasks_done, subtask, continues = _match(_TASKS, TASK_LEVEL, levels).groups()
    text, *pair, relation = _match(_COMPATIBILITY, ANALYSIS, analysis).groups()
    return Answer.model_validate(
        {
            "label": label,
            "tasks": TaskHierarchy(
                completed_main_tasks=_listed_tasks(done),
                active_main_task=active,
                completed_subtasks=_listed_tasks(subtasks_done),
                active_subtask=subtask,
            ),
            "continues": continues,
            "historical": _listed_items(HISTORICAL, historical),
            "new": _listed_items(NEW, new),
            "analysis": text,
            "relation": relation,
            "anchor": _fields(*pair[:3]) if relation else None,
            "new_constraint": _fields(*pair[3:]) if relation else None,
        }
    )


def _match(pattern: re.Pattern[str], heading: str, section: str) -> re.Match[str]:
    match = pattern.fullmatch(section)
    if match is None:
        raise _Malformed(f"{heading} does not follow the form")
    return match


def _listed_tasks(listed: str) -> tuple[str, ...]:
    return () if listed == " none" else tuple(line.removeprefix("- ") for line in listed.strip().splitlines())


def _listed_items(heading: str, section: str) -> list[dict[str, Any]]:
    _match(_ITEMS, heading, section)
    return [
        _fields(kind, dimension, value) | {"inferred_from": evidence or None}
        for kind, dimension, value, evidence in re.findall(rf"^{_ITEM}$", section, re.MULTILINE)
    ]


def _fields(kind: str, dimension: str, value: str) -> dict[str, Any]:
    return {"type": kind, "dimension": dimension, "value": value}


def sft_example(sample: Sample, retention: Retention = Retention.PARTIAL) -> dict[str, Any]:
    """A row of UC-Data-SFT: the detector's message and the answer to learn. Raises as `answer_of` does."""
    answer = answer_of(sample)
    row = _row(sample, retention, answer.label)
    row["messages"].append({"role": "assistant", "content": format_answer(answer)})
    return row


def grpo_example(sample: Sample, retention: Retention = Retention.PARTIAL) -> dict[str, Any]:
    """A row of UC-Data-GRPO: the detector's message and the reference that the reward compares an answer with.

    The reference's constraints are normalised as those of an `Answer`. Raises as `answer_of` does.
    """
    answer = answer_of(sample)
    reference = {
        "label": answer.label.value,
        "relation": answer.relation.value if answer.relation else None,
        "historical_constraint": _reference(answer.anchor, sample.anchor),
        "new_constraint": _reference(answer.new_constraint, sample.new),
    }
    return _row(sample, retention, answer.label) | {"reference": reference}


def _row(sample: Sample, retention: Retention, label: Label) -> dict[str, Any]:
    if sample.follow_up is None:
        raise ValueError(f"sample {sample.id} has no follow-up")
    return {
        "id": sample.id,
        "messages": detector_messages(sample.dialogue, sample.follow_up, retention),
        "label": label.value,
        "language": sample.language,
        "seed_id": sample.seed_id,
    }


def _reference(named: Named | None, constraint: Constraint | NewConstraint | None) -> dict[str, str] | None:
    if named is None or constraint is None:
        return None
    return {**named.model_dump(), "evidence": _value(constraint.evidence)}
