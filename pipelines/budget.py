"""A run's budget: what was spent, by the usage ledger, and how a stream comes to rest that has spent it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.run_folder import RunFolder
from synuc.config import Budget, RunConfig
from synuc.layers import ConfigError
from synuc.problem import Problem


class BudgetReached(Problem):
    """The run has spent its budget, and what was begun is finished and written. The message says how to go on."""


class Purse:
    """What a run may spend, and has spent: by its ledger, read if there is a bound, and by the calls that come in."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        """Raises ConfigError: the budget is in money, and no engine has a price."""
        self.budget: Budget = config.budget
        self.priced = any(any(engine.price.model_dump().values()) for engine in config.engines())
        if self.budget.usd is not None and not self.priced:
            raise ConfigError(
                "budget.usd: no engine has a price, so that nothing would ever be spent; "
                "set engine.price.prompt, cached_prompt and completion (per million tokens), or use budget.tokens"
            )
        self.usd, self.tokens = folder.spent() if self.budget.bounded else (0.0, 0)

    def pay(self, calls: Iterable[Mapping[str, Any]]) -> None:
        """Count these rows of the ledger."""
        for call in calls:
            self.usd += call["cost"]
            self.tokens += call["prompt_tokens"] + call["completion_tokens"]

    @property
    def empty(self) -> bool:
        """Whether a bound is reached."""
        over_usd = self.budget.usd is not None and self.usd >= self.budget.usd
        return over_usd or (self.budget.tokens is not None and self.tokens >= self.budget.tokens)

    def reached(self, done: int, total: int) -> BudgetReached:
        """The message of a run that stops with `done` of `total` dialogues finished."""
        money = f"{self.usd:,.4f}" + (f" of {self.budget.usd:g}" if self.budget.usd is not None else "") + " USD, "
        tokens = f"{self.tokens:,}" + (f" of {self.budget.tokens:,}" if self.budget.tokens is not None else "")
        return BudgetReached(
            f"the budget is reached: {money if self.priced else ''}{tokens} tokens spent; {done:,} of {total:,} "
            "dialogues are finished. To go on, give the same command with a higher budget."
        )


class Closing:
    """The end of a stream of which no more may be begun: over when all that workers had in flight has come back."""

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._held: set[str] = set()

    def held(self, seed_id: str) -> None:
        """This dialogue has come back, since its worker was not let begin it."""
        self._held.add(seed_id)

    def over(self, in_flight: Iterable[str], finished: set[str]) -> bool:
        """True if of the dialogues that ever were `in_flight` each was held or has `finished`."""
        self._begun.update(in_flight)
        return not self._begun - finished - self._held
