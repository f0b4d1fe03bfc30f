"""The three ways to decide whether two wordings are one requirement: by words, by embeddings, by a judge."""

from __future__ import annotations

import asyncio
import atexit
import threading
from functools import lru_cache
from typing import Annotated, cast

from pydantic import BaseModel, ConfigDict, StringConstraints

from actors.embedding import Embedder, EmbeddingModelMissing
from actors.engine import Engine, EngineDead, ask
from synuc import prompts
from synuc.matching import THRESHOLD, lexical
from synuc.problem import Problem
from synuc.rewards import Same
from synuc.types import CallFailed, LLMRequest
from training.config import Pooling, Strategy

LONGEST = 400
"""Characters of a wording that is compared at all: no annotated constraint takes so many, only lists do."""

CACHED = 16_384
"""How many pairs a judge remembers: a group's answers mostly name the same ones."""

EMBEDDING_THRESHOLD = 0.8
"""The least cosine of two wordings of one requirement. A guess: every model has its own scale; choose a threshold
with `python -m tests.measure_matching --embedding FOLDER`."""


class MatchingFailed(Problem):
    """A matcher that can't decide. Training stops: a guessed reward would teach whatever the guess is."""


class Verdict(BaseModel):
    """What a judge answers."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, StringConstraints(max_length=400)]
    same: bool


def matcher(
    name: Strategy,
    *,
    threshold: float | None = None,
    model: str = "Qwen/Qwen3-Embedding-0.6B",
    pooling: Pooling = "last",
    engine: Engine | None = None,
) -> Same:
    """The strategy `name`; it may be called from several threads.

    Args:
        threshold: least similarity that counts as the same, of `lexical` and `embedding`; none: the strategy's own.
        model: folder or hub name of the embedding model, or `embedded` (MiniLM, which pools its `mean`).
        pooling: how that model makes one vector of many: `last` token, as Qwen3-Embedding, or `mean`.
        engine: the model that judges. The matcher calls it from a thread of its own and closes it at exit,
            so nobody else may use it.

    Raises:
        MatchingFailed: the embedding model can't be loaded; later from the matcher: the judge fails.
    """
    if name == "lexical":
        least = THRESHOLD if threshold is None else threshold
        return _bounded(lambda a, b: lexical(a, b) >= least)
    if name == "embedding":
        return _bounded(_embedding(model, pooling, EMBEDDING_THRESHOLD if threshold is None else threshold))
    if engine is None:
        raise ValueError("the strategy `judge` needs an engine")
    return _bounded(_judge(engine))


def _bounded(same: Same) -> Same:
    def decide(a: str, b: str) -> bool:
        return a == b or (max(len(a), len(b)) <= LONGEST and same(a, b))

    return decide


def _embedding(name: str, pooling: Pooling, threshold: float) -> Same:
    try:
        embed = Embedder(name, pooling)
    except EmbeddingModelMissing as error:
        raise MatchingFailed(f"{error}, or take the strategy lexical") from error
    return lambda a, b: float(embed(a) @ embed(b)) >= threshold


def _judge(engine: Engine) -> Same:
    # Reward functions are synchronous, and an engine lives in one event loop.
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="judge", daemon=True).start()
    atexit.register(lambda: asyncio.run_coroutine_threadsafe(engine.close(), loop).result(timeout=10))

    @lru_cache(maxsize=CACHED)
    def decide(first: str, second: str) -> bool:
        return asyncio.run_coroutine_threadsafe(_verdict(engine, first, second), loop).result().same

    # In one order, because a judge might answer differently in the other.
    return lambda a, b: decide(*sorted((a, b)))


async def _verdict(engine: Engine, first: str, second: str) -> Verdict:
    request = LLMRequest(
        stage="same_constraint",
        role="verifier",
        key=f"{first}\n{second}",
        messages=({"role": "user", "content": prompts.render("same_constraint", first=first, second=second).strip()},),
        reply=Verdict,
        max_tokens=300,
    )
    try:
        return cast(Verdict, await ask(engine, request, [], attempts=3))
    except (CallFailed, EngineDead) as error:
        raise MatchingFailed(
            f"the judge {engine.name} can't say whether {first!r} and {second!r} are the same constraint: {error}; "
            "look at its log, take a stronger judge, or another strategy. Training goes on from its last checkpoint"
        ) from error
