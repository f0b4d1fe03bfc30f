"""What a program of the method may ask of whoever drives it.

A program is a generator: it yields an effect, receives the effect's result, and returns what it made. Whoever drives it
carries the effects out: an actor on a real engine and memory, a test from a script. `LLMRequest` gives the parsed reply
or raises `CallFailed` inside the program; `Fork` gives the results of programs that may run side by side.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from synuc import prompts
from synuc.memory import Lease, Trajectory
from synuc.speaking import Speaking
from synuc.types import Constraint, Dialogue, LLMRequest, Role, TaskHierarchy

T = TypeVar("T")
Program = Generator[Any, Any, T]


@dataclass(frozen=True)
class Fork:
    """Run the programs side by side; the result is the list of theirs, in order."""

    programs: tuple[Program[Any], ...]


@dataclass(frozen=True)
class ReadRepository:
    """The result is the schema's `RepositoryView`."""

    speaking: Speaking


@dataclass(frozen=True)
class RecordTrajectory:
    """Put a trajectory into its schema's buffer. The result is a `Lease` if the buffer is now to be merged, or None."""

    trajectory: Trajectory


@dataclass(frozen=True)
class CommitUpdate:
    """Make the named candidates of a lease the repository."""

    lease: Lease
    successes: tuple[str, ...]
    failures: tuple[str, ...]


@dataclass(frozen=True)
class ReleaseLease:
    """Give a lease back without an update."""

    lease: Lease
    reason: str


@dataclass(frozen=True)
class Compare:
    """The result: for each query its similarity to every document, more is closer. `method.retrieval` says which one.

    Shape: one list per query, in it one number per document.
    """

    queries: tuple[str, ...]
    documents: tuple[str, ...]


@dataclass(frozen=True)
class Once:
    """What `program` returns, for all who name the same `key`: it is run once in a process. A failure is not kept."""

    key: str
    program: Program[Any]


# Bounds on an answer's tokens. The JSON schemas bound the characters; Chinese takes up to three tokens a character.
MAX_TOKENS = {
    "filter": 400,
    "tasks": 900,
    "constraints": 2400,
    "match": 400,
    "generate": 700,
    "pair": 700,
    "realize": 1200,
    "realize_triplet": 2400,
    "verify_anchor": 900,
    "extract_new": 1500,
    "judge_global": 1000,
    "verify_direct": 1000,
    "curate": 600,
}


def request(
    stage: str,
    role: Role,
    key: str,
    temperature: float,
    reply: type[BaseModel],
    dialogue: Dialogue | None,
    tasks: TaskHierarchy | None = None,
    constraints: tuple[Constraint, ...] | None = None,
    template: str | None = None,
    **values: Any,
) -> LLMRequest:
    """The call of a stage. `template`: its prompt, where that isn't named like the stage; `values` fill it in."""
    return LLMRequest(
        stage=stage,
        role=role,
        key=key,
        messages=prompts.messages(template or stage, dialogue, tasks, constraints, **values),
        reply=reply,
        max_tokens=MAX_TOKENS[stage],
        temperature=temperature,
    )
