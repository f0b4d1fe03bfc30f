"""How good is a model as the method's verifier (paper, section 4.1.6)? Every gold item is offered with every label.

A verifier should accept an item under its own label and under no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sklearn.metrics import auc, precision_recall_curve, roc_curve

from eval.bench import BenchItem, GoldConstraint
from eval.judging import failures, joined
from eval.metrics import wilson
from eval.protocol import Item, Result
from synuc import prompts
from synuc.config import Method
from synuc.effects import Fork, Program
from synuc.matching import THRESHOLD, lexical
from synuc.sample import Outcome, Sample
from synuc.synthesis import extract
from synuc.types import CallFailed, Constraint, ConstraintType, Dialogue, History, Label, NewConstraint
from synuc.verifier import global_stage, verify

PRECISION = 0.95
"""The share of right labels among the accepted that the stricter of the suggested thresholds promises."""

EXTRACTION_CALLS = 2
STAGES = ("anchor", "global")


@dataclass(frozen=True)
class VerifierQuality:
    """Offers each gold item to the method's verifier under ND, ER and IC; `tau` is the least confidence it accepts.

    The verifier's programs run as in synthesis, and their requests keep their roles: `generator` for the extraction of
    the history's constraints, `verifier` for the rest. What synthesis would hand over is made of the gold item so:

    - The tasks and constraints of the history are extracted once per item by the method's own extractor. The historical
      constraints of the gold rationale are added to them, in place of extracted ones in like words
      (`synuc.matching.lexical`). Their scope is the main task.
    - The pair offered with ER or IC is the first historical and the first new constraint of the gold rationale.
      Synthesis never offers a pair whose types contradict its label, so a wrong offer claims types that fit: both
      explicit for ER, and of an explicit revision offered as IC the new constraint is called implicit.
    - A normal dialogue has no pair. Offered as ER or IC, it goes through the global stage alone.

    An ER or IC item whose rationale names no pair fails with the kind `no_pair`.

    A result: `offers`, each with `offered`, `accepted`, the `stage` and `reason` of its rejection (`anchor`, `global`,
    `confidence`; empty if accepted), the `kind` of a failed call (else empty), `judged` (the global stage's own label)
    and `confidence` (q), both None if that wasn't reached, and the number of its `calls`.
    """

    tau: int = 80
    temperature: float = 0.0
    name = "verifier"

    def snapshot(self) -> dict[str, Any]:
        return {**asdict(self), "method_prompts": prompts.version()}

    def program(self, item: Item) -> Program[dict[str, Any]]:
        """The verifier's decisions on the three offers of an item."""
        bench = BenchItem.model_validate(item)
        if bench.label is not Label.ND and bench.relation is None:
            raise CallFailed("no_pair", "its rationale names no pair of constraints to offer")
        method = Method(tau=self.tau, verifier_temperature=self.temperature)
        extracted: History = yield from extract(bench.id, bench.history)
        offers = yield Fork(tuple(_offer(bench, extracted, label, method) for label in Label))
        return {"offers": offers}

    def figures(self, items: Sequence[Item], results: Sequence[Result]) -> dict[str, Any]:
        """The quality over all offers whose calls gave usable answers.

        - `acceptance`: by gold and offered label, `n`, `accepted`, `rate` and its 95% Wilson `interval`;
        - `stages`: for `right` and `wrong` offers, how many were accepted (`accepted`) or rejected at each stage;
        - `confidence`: `edges` of ten bins over q, and how many `right` and `wrong` offers that passed both stages are
          in each;
        - `roc`: over tau, with q = 0 for what a stage rejected: `auc`, `points` (`tau`, `tpr`, `fpr`), and two
          suggested thresholds: `youden`, the point with the largest tpr - fpr, if that is above 0, and `precise_tau`,
          the smallest with a precision of at least 0.95 at one right offer to two wrong ones; None where there is none;
        - `calls`: of the `extraction` and the `verification`, and `per_item`, without repeated attempts;
        - `failed`: items by kind of failure, and `failed_offers` of the other items.
        """
        rows = [(item, value["offers"]) for item, value in joined(items, results) if value]
        offers = [(item["label"], offer) for item, offers in rows for offer in offers]
        decided = [(gold, offer) for gold, offer in offers if not offer["kind"]]
        calls = {"extraction": EXTRACTION_CALLS * len(rows), "verification": sum(offer["calls"] for _, offer in offers)}
        return {
            "items": len(items),
            "tau": self.tau,
            "acceptance": _acceptance(decided),
            "stages": _by_side(decided, _stages),
            "confidence": {"edges": list(range(0, 101, 10)), **_by_side(decided, _histogram)},
            "roc": _roc(decided),
            "calls": {**calls, "per_item": sum(calls.values()) / len(rows) if rows else None},
            "failed": failures(results)["failed"],
            "failed_offers": dict(Counter(offer["kind"] for _, offer in offers if offer["kind"])),
        }


def _offer(item: BenchItem, extracted: History, label: Label, method: Method) -> Program[dict[str, Any]]:
    """The verifier's decision on an item that is claimed to have the label."""
    historical, pair = _annotated(item, label)
    history = extracted.model_copy(update={"constraints": _together(historical, extracted.constraints)})
    sample = Sample(
        id=f"{item.id}-{label.value}",
        seed_id=item.id,
        label=label,
        outcome=Outcome.FAILED,
        language=item.language,
        source=item.subset,
        origin=item.id,
        dialogue=history.dialogue,
        follow_up=item.follow_up,
        tasks=history.tasks,
        constraints=history.constraints,
        anchor=pair and pair[0],
        new=pair and pair[1],
    )
    without_pair = label is not Label.ND and pair is None
    sample = yield from (global_stage if without_pair else verify)(sample, history, method)
    # The anchor stage, where there is a pair, takes one call; the global stage extracts, then judges.
    calls = (pair is not None) + (0 if sample.stage == "anchor" else 1 + (sample.continues is not None))
    return {
        "offered": label.value,
        "accepted": sample.outcome is Outcome.ACCEPTED,
        "stage": sample.stage,
        "kind": sample.kind,
        "reason": sample.reason,
        "judged": sample.judgment.label.value if sample.judgment else None,
        "confidence": sample.judgment.confidence if sample.judgment else None,
        "calls": calls,
    }


def _annotated(item: BenchItem, label: Label) -> tuple[tuple[Constraint, ...], tuple[Constraint, NewConstraint] | None]:
    """The historical constraints of the gold rationale, and the pair that is offered with the label, if there is one.

    The pair's historical constraint is among the first, of the type that is claimed.
    """
    if item.rationale is None:
        return (), None
    (anchor, *others), new = item.rationale.historical, item.rationale.new[0]
    if label is Label.ER:
        anchor, new = _typed(anchor, "explicit"), _typed(new, "explicit")
    elif label is Label.IC and item.label is Label.ER:
        new = _typed(new, "implicit")
    historical = tuple(_historical(constraint, item.history) for constraint in (anchor, *others))
    if label is Label.ND:
        return historical, None
    return historical, (historical[0], NewConstraint(**new.model_dump(exclude={"turn"})))


def _typed(constraint: GoldConstraint, kind: ConstraintType) -> GoldConstraint:
    return constraint.model_copy(update={"type": kind})


def _historical(gold: GoldConstraint, dialogue: Dialogue) -> Constraint:
    """A gold constraint as the method's own; of an unknown turn, the first in which its evidence stands is taken."""
    holding = (n for n, turn in enumerate(dialogue.turns, 1) if gold.evidence in turn.user)
    fields = gold.model_dump(exclude={"turn"})
    return Constraint(**fields, turn=gold.turn or next(holding, 1), scope="main_task")


def _together(gold: Sequence[Constraint], extracted: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """C: the gold constraints, then the extracted ones that no gold one words likewise; explicit ones first."""
    others = [c for c in extracted if not any(lexical(str(c), str(known)) >= THRESHOLD for known in gold)]
    return tuple(sorted([*gold, *others], key=lambda c: c.type))


Decided = Sequence[tuple[str, dict[str, Any]]]
"""Gold labels and offers."""


def _acceptance(decided: Decided) -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = {}
    for gold in Label:
        for offered in Label:
            cell = [offer["accepted"] for label, offer in decided if (label, offer["offered"]) == (gold, offered)]
            n, accepted = len(cell), sum(cell)
            rate, interval = (accepted / n, wilson(accepted, n)) if n else (None, None)
            row = {"n": n, "accepted": accepted, "rate": rate, "interval": interval}
            table.setdefault(gold.value, {})[offered.value] = row
    return table


def _by_side(decided: Decided, figure: Callable[[list[dict[str, Any]]], Any]) -> dict[str, Any]:
    """A figure of the right and of the wrong offers."""
    return {
        "right": figure([offer for gold, offer in decided if gold == offer["offered"]]),
        "wrong": figure([offer for gold, offer in decided if gold != offer["offered"]]),
    }


def _stages(offers: list[dict[str, Any]]) -> dict[str, int]:
    counts = Counter(offer["stage"] or "accepted" for offer in offers)
    return {stage: counts[stage] for stage in ("accepted", *STAGES, "confidence")}


def _histogram(offers: list[dict[str, Any]]) -> list[int]:
    passed = [offer["confidence"] for offer in offers if offer["stage"] not in STAGES]
    return [int(count) for count in np.histogram(passed, bins=10, range=(0, 100))[0]]


def _score(offer: dict[str, Any]) -> int:
    """q, or 0 for an offer that a stage rejected whatever q is."""
    score: int = 0 if offer["stage"] in STAGES else offer["confidence"]
    return score


def _roc(decided: Decided) -> dict[str, Any] | None:
    """None unless there are right and wrong offers."""
    right = [gold == offer["offered"] for gold, offer in decided]
    if len(set(right)) < 2:
        return None
    scores = [_score(offer) for _, offer in decided]
    fpr, tpr, taus = roc_curve(right, scores, drop_intermediate=False)
    # The curve begins above every score, and what a stage rejected is accepted at no tau.
    points = [
        {"tau": int(tau), "tpr": float(hit), "fpr": float(miss)}
        for tau, hit, miss in zip(taus[1:], tpr[1:], fpr[1:], strict=True)
        if tau > 0
    ]
    better = [point for point in points if point["tpr"] > point["fpr"]]
    precision, _, thresholds = precision_recall_curve(right, scores)
    precise = [int(tau) for tau, p in zip(thresholds, precision, strict=False) if tau > 0 and p >= PRECISION]
    return {
        "auc": float(auc(fpr, tpr)),
        "points": points,
        "youden": max(better, key=lambda point: point["tpr"] - point["fpr"], default=None),
        "precise_tau": min(precise, default=None),
    }
