"""The classification protocol (paper, section 5.4): one of three labels for a follow-up, given its dialogue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eval.bench import BenchItem
from eval.calibration import calibration
from eval.metrics import by_subset, confusion, intervals
from eval.protocol import Item, Result
from eval.slices import sliced
from synuc import formatting
from synuc.formatting import JUDGMENT, Retention, messages_for
from synuc.reading import label_probabilities, read_label, unreadable
from synuc.types import Label, LLMRequest, Spoken

Prompt = formatting.Prompt
Mode = formatting.Asked

WITHHELD = "content_filter"
"""The kind of failure of a call whose answer the provider withholds."""

FIRST_WORDS = 8
"""Tokens of an answer that is a label alone."""


@dataclass(frozen=True)
class Classification:
    """An item's result holds `predicted` (a label or None), `kind` (why there is none, else empty), `answer`,
    `prompt_tokens`, and in mode `label` the `probabilities` of the labels (None where the engine gives no candidates of
    the first token).
    """

    retention: Retention
    prompt: Prompt
    mode: Mode
    temperature: float
    max_tokens: int
    name = "uc"

    def snapshot(self) -> dict[str, Any]:
        return asdict(self)

    def program(self, item: Item) -> Generator[Any, Any, dict[str, Any]]:
        bench = BenchItem.model_validate(item)
        label_only = self.mode == "label"
        spoken: Spoken = yield LLMRequest(
            stage="classify",
            role="model",
            key=bench.id,
            messages=tuple(messages_for(bench.history, bench.follow_up, self.retention, self.prompt, self.mode)),
            reply=Spoken,
            max_tokens=FIRST_WORDS if label_only else self.max_tokens,
            temperature=self.temperature,
            begun=f"{JUDGMENT}\n" if label_only and self.prompt == "trained" else "",
            logprobs=label_only,
        )
        probabilities = label_probabilities(spoken.first)
        if label_only:
            predicted = max(probabilities, key=probabilities.__getitem__) if probabilities else _bare(spoken.text)
        else:
            predicted = read_label(spoken.text)
        return {
            "predicted": predicted,
            "kind": "" if predicted else unreadable(spoken.text, spoken.cut and not label_only),
            "answer": spoken.text,
            "probabilities": probabilities if label_only else None,
            "prompt_tokens": spoken.prompt_tokens,
        }

    def figures(self, items: Sequence[Item], results: Sequence[Result]) -> dict[str, Any]:
        """The paper's figures per subset and overall; whatever gave no readable label is wrong, and counted by kind."""
        bench = [BenchItem.model_validate(item) for item in items]
        gold = [item.label for item in bench]
        predicted = [predicted_label(result) for result in results]
        kinds = Counter(_kind(result) for result in results)
        bounds: dict[str, Any] = intervals(gold, predicted)
        return {
            **by_subset([item.subset for item in bench], gold, predicted),
            "intervals": bounds if Label.IC in gold else {**bounds, "recall_ic": None},
            "confusion": confusion(gold, predicted),
            "kinds": {kind: kinds[kind] for kind in ("unparseable", "refusal", "cut_off", "failed")},
            "slices": sliced(
                bench, predicted, [result.value["prompt_tokens"] if result.value else None for result in results]
            ),
            "calibration": self._calibration(gold, results),
        }

    def _calibration(self, gold: Sequence[Label], results: Sequence[Result]) -> dict[str, Any] | None:
        known = [
            (label, {Label(name): p for name, p in result.value["probabilities"].items()})
            for label, result in zip(gold, results, strict=True)
            if result.value and result.value["probabilities"]
        ]
        return calibration([label for label, _ in known], [row for _, row in known]) if known else None


def predicted_label(result: Result) -> Label | None:
    """The label of a result, or None where none was readable or the call failed."""
    return Label(result.value["predicted"]) if result.value and result.value["predicted"] else None


def _kind(result: Result) -> str:
    """Why a result has no label, empty if it has one. An answer that the provider withheld is a refusal, too."""
    if result.value:
        kind: str = result.value["kind"]
        return kind
    return "refusal" if result.kind == WITHHELD else "failed"


def _bare(text: str) -> Label | None:
    """The label that an answer in mode `label` is, where no probabilities were given."""
    return read_label(f"{JUDGMENT}\n{text}")
