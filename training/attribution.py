"""The constraint-attribution reward (paper, section 4.2) as the one reward function of TRL's GRPOTrainer.

One function, because the attribution term only counts where label and format are right: TRL adds separate ones up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from synuc.rewards import Reference, Reward, Same, reward
from synuc.types import Label

THREADS = 16
"""Answers that are judged at once, for matchers that wait for an endpoint."""

Completion = str | Sequence[Mapping[str, Any]]
LogMetric = Callable[[str, float], None]


class RewardFunction(Protocol):
    """How GRPOTrainer calls a reward function: by keyword, one list entry per completion."""

    __name__: str

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Completion],
        reference: Sequence[Mapping[str, Any]],
        log_metric: LogMetric | None = None,
        **kwargs: Any,
    ) -> list[float]: ...


def make_reward(same: Same, alpha: float, beta: float) -> RewardFunction:
    """The reward function R of equation 8 for UC-Data-GRPO, whose column `reference` it reads.

    It logs, as means over completions: `reward/label`, `reward/fmt`, `unparseable` (not of the form) and `unlabelled`
    (no label could be read); and over
    those whose follow-up revises or conflicts (ER, IC): `reward/attr`, `attr/anchor_found`, `attr/new_found`,
    `attr/types_right`.
    """

    def attribution_reward(
        prompts: Sequence[Any],
        completions: Sequence[Completion],
        reference: Sequence[Mapping[str, Any]],
        log_metric: LogMetric | None = None,
        **kwargs: Any,
    ) -> list[float]:
        references = [Reference.model_validate(row) for row in reference]
        with ThreadPoolExecutor(THREADS) as pool:
            rewards = list(
                pool.map(
                    lambda completion, annotated: reward(_text(completion), annotated, same, alpha, beta),
                    completions,
                    references,
                )
            )
        if log_metric is not None:
            for one, annotated in zip(rewards, references, strict=True):
                # Each value by itself: TRL weighs all it is given alike, over all processes.
                for name, value in _metrics(one, annotated):
                    log_metric(name, float(value))
        return [one.total for one in rewards]

    return attribution_reward


def _text(completion: Completion) -> str:
    return completion if isinstance(completion, str) else "".join(message["content"] for message in completion)


def _metrics(one: Reward, annotated: Reference) -> list[tuple[str, float]]:
    metrics = [("reward/label", one.label), ("reward/fmt", one.fmt), ("unparseable", 1 - one.fmt)]
    metrics += [("unlabelled", one.predicted is None)]
    if annotated.label is not Label.ND:
        metrics += [
            ("reward/attr", one.attr),
            ("attr/anchor_found", one.found_anchor),
            ("attr/new_found", one.found_new),
            ("attr/types_right", one.types_right),
        ]
    return metrics
