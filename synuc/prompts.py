"""Renders the templates in `synuc/prompts/` into chat messages.

Every prompt has the same layout, so that an engine's prefix cache makes the later calls about one dialogue nearly free:
the constant system text, then the dialogue, then its tasks and constraints where a stage needs them, then the job.
Dialogue text is quoted line by line; no line of it can pass for a heading of ours.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import jinja2
from pydantic import BaseModel

from synuc import replies
from synuc.speaking import EXAMPLE, MEANING
from synuc.types import Constraint, Dialogue, Label, TaskHierarchy

FOLDER = files("synuc").joinpath("prompts")
NOT_IN_SYNTHESIS = ("detector.md", "definitions.md", "zero_shot.md", "label_only.md", "same_constraint.md")


def quoted(text: str) -> str:
    # splitlines knows every line break that a model could take for one (also U+2028, form feed, …).
    return "\n".join(f"> {line}" for line in text.splitlines()) or "> "


def _line(value: object) -> str:
    return " ".join(str(value).split())


def _joined(items: Iterable[str]) -> str:
    return "; ".join(_line(item) for item in items) or "none"


def sources(folder: Traversable) -> dict[str, str]:
    """The templates of a folder by file name."""
    return {file.name: file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".md")}


def environment(templates: Mapping[str, str]) -> jinja2.Environment:
    """Renders `templates`, with the filters that quote other people's text; a missing value is an error."""
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(templates),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {"quoted": quoted, "line": _line, "joined": _joined}
    return environment


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    return environment(sources(FOLDER))


def render(name: str, **values: Any) -> str:
    """The template `name` (without `.md`) with its values filled in; a missing value is an error."""
    return _environment().get_template(f"{name}.md").render(**values)


@lru_cache(maxsize=256)
def _dialogue(dialogue: Dialogue) -> str:
    return render("dialogue", dialogue=dialogue)


def messages(
    job: str,
    dialogue: Dialogue | None,
    tasks: TaskHierarchy | None = None,
    constraints: Sequence[Constraint] | None = None,
    **values: Any,
) -> tuple[dict[str, str], ...]:
    """The chat messages of one job: system text, dialogue, tasks and constraints if given, job."""
    parts = [] if dialogue is None else [_dialogue(dialogue)]
    if tasks is not None:
        parts.append(render("history", tasks=tasks, constraints=constraints))
    parts.append(render(job, **values).strip())
    return (
        {"role": "system", "content": render("system").strip()},
        {"role": "user", "content": "".join(parts)},
    )


@lru_cache(maxsize=1)
def version() -> str:
    """Twelve hex digits over all that synthesis shows a model: templates, schema texts, the shape of the answers.

    The prompts of detectors and of the reward's judge are not part of it: samples don't depend on them.
    """
    shown = {name: source for name, source in sources(FOLDER).items() if name not in NOT_IN_SYNTHESIS}
    shapes: list[type[BaseModel]] = [
        replies.Eligibility,
        replies.Tasks,
        replies.HistoricalConstraints,
        replies.NewConstraints,
        replies.Generated,
        replies.Message,
        replies.AnchorVerdict,
        replies.Judgment,
        replies.match_reply(("c1",)),
        replies.pair_reply(("c1",), False),
        replies.triplet_reply(tuple(Label)),
        replies.judgment_reply(("n1",)),
        replies.curation_reply(("t1",), 3),
    ]
    everything = [shown, [model.model_json_schema() for model in shapes], MEANING, EXAMPLE]
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:12]
