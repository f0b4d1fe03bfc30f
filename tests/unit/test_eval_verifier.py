"""The quality of a verifier: what it is offered, and the figures on offers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from eval.bench import BenchItem, GoldConstraint, Rationale
from eval.protocol import Result
from eval.verifier import VerifierQuality
from synuc import prompts
from synuc.types import CallFailed, Label, LLMRequest
from tests.evaluation import Answer, drive
from tests.scripted import DEFAULTS, label_of
from tests.unit.test_response import item as conflict

NEW = GoldConstraint(type="implicit", dimension="audience", value="adults only", evidence="wine tasting")
ANCHOR = GoldConstraint(type="implicit", dimension="audience", value="suitable for children", evidence="kids")
CROWDS = GoldConstraint(type="explicit", dimension="place", value="no crowds", evidence="Avoid crowded places")
OLD_TOWN = GoldConstraint(type="explicit", dimension="place", value="the crowded old town", evidence="old town")


def item(label: Label, rationale: Rationale | None = None, id: str = "a") -> dict[str, Any]:
    fields = conflict(id) | {"label": label.value, "rationale": rationale}
    return BenchItem.model_validate(fields).model_dump(mode="json")


ITEMS = {
    Label.ND: item(Label.ND),
    Label.ER: item(Label.ER, Rationale(historical=(CROWDS,), new=(OLD_TOWN,))),
    Label.IC: item(Label.IC, Rationale(historical=(ANCHOR, CROWDS), new=(NEW,))),
}


def script(answers: Mapping[str, Answer] = {}) -> Callable[[LLMRequest], Answer]:
    """A verifier that accepts everything with q = 90, except where `answers` (by stage, or stage/label) say else."""

    def reply(request: LLMRequest) -> Answer:
        answer = answers.get(f"{request.stage}/{label_of(request)}", answers.get(request.stage, {}))
        if isinstance(answer, CallFailed):
            return answer
        assert isinstance(answer, Mapping)
        return {**DEFAULTS[request.stage](request), **answer}

    return reply


def offers(gold: Label, answers: Mapping[str, Answer] = {}, tau: int = 80) -> dict[str, dict[str, Any]]:
    value = drive(VerifierQuality(tau=tau).program(ITEMS[gold]), script(answers))
    return {offer["offered"]: offer for offer in value["offers"]}


def asked(gold: Label) -> dict[str, list[LLMRequest]]:
    """The requests by the label offered; those before the offers under no label."""
    requests: list[LLMRequest] = []
    drive(VerifierQuality().program(ITEMS[gold]), script(), requests)
    return {label: [r for r in requests if label_of(r) == label] for label in ("", "ND", "ER", "IC")}


def shown(request: LLMRequest) -> str:
    return request.messages[-1]["content"]


GLOBAL_STAGE = ["extract_new", "judge_global"]
BOTH_STAGES = ["verify_anchor", *GLOBAL_STAGE]


@pytest.mark.parametrize(
    ("gold", "with_pair"), [(Label.ND, GLOBAL_STAGE), (Label.ER, BOTH_STAGES), (Label.IC, BOTH_STAGES)]
)
def test_the_methods_own_programs_are_asked(gold: Label, with_pair: list[str]) -> None:
    by_label = asked(gold)
    assert {label: [request.stage for request in requests] for label, requests in by_label.items()} == {
        "": ["tasks", "constraints"],
        "ND": GLOBAL_STAGE,
        "ER": with_pair,
        "IC": with_pair,
    }
    assert {request.role for request in by_label[""]} == {"generator"}
    assert {request.role for label in Label for request in by_label[label]} == {"verifier"}


def test_the_pair_of_an_implicit_conflict_is_the_gold_one() -> None:
    anchor_stage = shown(asked(Label.IC)["IC"][0])
    assert "historical: implicit, main_task | audience: suitable for children | turn 1: kids" in anchor_stage
    assert "new: implicit | audience: adults only" in anchor_stage


def test_offered_as_a_revision_both_sides_are_called_explicit() -> None:
    anchor_stage = shown(asked(Label.IC)["ER"][0])
    assert "historical: explicit, main_task | audience: suitable for children" in anchor_stage
    assert "new: explicit | audience: adults only" in anchor_stage
    # The anchor is among the constraints that a revision may choose from.
    assert "explicit, main_task | audience: suitable for children | turn 1: kids" in anchor_stage.split("# Job")[0]


def test_a_revision_offered_as_a_conflict_has_an_implicit_side() -> None:
    requests = asked(Label.ER)
    assert "new: implicit | place: the crowded old town" in shown(requests["IC"][0])
    assert "new: explicit | place: the crowded old town" in shown(requests["ER"][0])
    # Its turn isn't annotated: the evidence stands in the second.
    assert "historical: explicit, main_task | place: no crowds | turn 2: Avoid crowded places" in shown(
        requests["IC"][0]
    )


def test_the_gold_constraints_join_the_extracted_ones_once() -> None:
    extracted = [
        {"turn": 1, "evidence": "kids", "type": "implicit", "dimension": "audience", "value": "suitable for Children"},
        {"turn": 1, "evidence": "weekend", "type": "explicit", "dimension": "length", "value": "two days"},
    ]
    found: dict[str, Answer] = {"constraints": {"constraints": [c | {"scope": "subtask"} for c in extracted]}}
    requests: list[LLMRequest] = []
    drive(VerifierQuality().program(ITEMS[Label.IC]), script(found), requests)
    judged = next(shown(r) for r in requests if r.stage == "judge_global" and label_of(r) == "ND")
    assert judged.split("# Valid constraints\n")[1].split("\n# Job")[0].splitlines() == [
        "c1. explicit, main_task | place: no crowds | turn 2: Avoid crowded places",
        "c2. explicit, subtask | length: two days | turn 1: weekend",
        "c3. implicit, main_task | audience: suitable for children | turn 1: kids",
    ]
    assert "Claimed pair" not in judged


def test_a_normal_dialogue_offered_as_a_conflict_claims_no_pair() -> None:
    judged = shown(asked(Label.ND)["IC"][-1])
    assert "Claim: the message is IC, Implicit Conflict.\n" in judged


def test_an_offer_keeps_where_it_ended() -> None:
    answers: dict[str, Answer] = {
        "verify_anchor/ER": {"pair_holds": False, "pair_analysis": "one is implied"},
        "judge_global/IC": {"confidence": 79},
        "judge_global/ND": {"label": "IC", "claim_holds": False, "confidence": 95},
    }
    by_label = offers(Label.IC, answers)
    assert by_label["ER"] == {
        "offered": "ER",
        "accepted": False,
        "stage": "anchor",
        "kind": "",
        "reason": "pair: one is implied",
        "judged": None,
        "confidence": None,
        "calls": 1,
    }
    keys = ("accepted", "stage", "judged", "confidence", "calls")
    assert [by_label["IC"][key] for key in keys] == [False, "confidence", "IC", 79, 3]
    assert [by_label["ND"][key] for key in keys] == [False, "global", "IC", 95, 2]
    assert offers(Label.IC, answers, tau=79)["IC"]["accepted"] is True


def test_a_failed_call_ends_its_offer_alone() -> None:
    by_label = offers(Label.IC, {"extract_new/IC": CallFailed("truncated", "no end")})
    assert {label: (offer["accepted"], offer["kind"]) for label, offer in by_label.items()} == {
        "ND": (True, ""),
        "ER": (True, ""),
        "IC": (False, "truncated"),
    }
    assert by_label["IC"]["calls"] == 2


def test_an_item_without_constraints_fails() -> None:
    with pytest.raises(CallFailed, match="truncated: "):
        offers(Label.ND, {"constraints": CallFailed("truncated", "no end")})
    without_pair = item(Label.IC, Rationale(text="The kids can't go there."))
    with pytest.raises(CallFailed, match="no_pair: "):
        drive(VerifierQuality().program(without_pair), script())


def offer(label: Label, q: int | None, stage: str = "", kind: str = "", calls: int = 3) -> dict[str, Any]:
    if not stage and q is not None and q < 80:
        stage = "confidence"
    return {
        "offered": label.value,
        "accepted": not stage and not kind,
        "stage": stage,
        "kind": kind,
        "reason": "",
        "judged": None,
        "confidence": q,
        "calls": calls,
    }


ND, ER, IC = Label.ND, Label.ER, Label.IC


def test_figures() -> None:
    # Scores of right offers: 95, 85, 60, 0. Of wrong offers: 85, 70, and 0 five times; one more failed.
    values = [
        (ND, [offer(ND, 95, calls=2), offer(ER, 85, calls=2), offer(IC, 99, "global", calls=2)]),
        (ER, [offer(ND, 90, "global", calls=2), offer(ER, 85), offer(IC, None, "anchor", calls=1)]),
        (IC, [offer(ND, 70, calls=2), offer(ER, None, "anchor", calls=1), offer(IC, 60)]),
        (
            IC,
            [
                offer(ND, None, "global", "truncated", calls=1),
                offer(ER, None, "anchor", calls=1),
                offer(IC, 88, "global"),
            ],
        ),
    ]
    items = [ITEMS[gold] | {"id": f"i{n}"} for n, (gold, _) in enumerate(values)]
    results = [Result(id=f"i{n}", value={"offers": given}) for n, (_, given) in enumerate(values)]
    items.append(ITEMS[IC] | {"id": "i4"})
    results.append(Result(id="i4", kind="no_pair", reason="no pair"))
    figures = VerifierQuality().figures(items, results)

    assert (figures["items"], figures["failed"], figures["failed_offers"]) == (5, {"no_pair": 1}, {"truncated": 1})
    cells = {
        gold: {offered: (cell["accepted"], cell["n"]) for offered, cell in row.items()}
        for gold, row in figures["acceptance"].items()
    }
    assert cells == {
        "ND": {"ND": (1, 1), "ER": (1, 1), "IC": (0, 1)},
        "ER": {"ND": (0, 1), "ER": (1, 1), "IC": (0, 1)},
        "IC": {"ND": (0, 1), "ER": (0, 2), "IC": (0, 2)},
    }
    assert figures["acceptance"]["IC"]["IC"]["rate"] == 0
    assert figures["stages"] == {
        "right": {"accepted": 2, "anchor": 0, "global": 1, "confidence": 1},
        "wrong": {"accepted": 1, "anchor": 3, "global": 2, "confidence": 1},
    }
    assert figures["confidence"] == {
        "edges": [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100],
        "right": [0, 0, 0, 0, 0, 0, 1, 0, 1, 1],
        "wrong": [0, 0, 0, 0, 0, 0, 0, 1, 1, 0],
    }
    assert figures["calls"] == {"extraction": 8, "verification": 23, "per_item": 31 / 4}
    roc = figures["roc"]
    assert [(point["tau"], point["tpr"], point["fpr"]) for point in roc["points"]] == [
        (95, pytest.approx(1 / 4), 0),
        (85, pytest.approx(2 / 4), pytest.approx(1 / 7)),
        (70, pytest.approx(2 / 4), pytest.approx(2 / 7)),
        (60, pytest.approx(3 / 4), pytest.approx(2 / 7)),
    ]
    # Pairs of a right and a wrong offer that are ranked right, ties half: 7 + (6 + 1/2) + 5 + 5/2, of 28.
    assert roc["auc"] == pytest.approx(21 / 28)
    # J: 1/4, 5/14, 3/14, 13/28. Precision: 1 at 95, 2/3, 1/2 and 3/5 below.
    assert roc["youden"]["tau"] == 60
    assert roc["precise_tau"] == 95


def test_no_threshold_accepts_what_a_stage_rejected() -> None:
    rejected = [offer(ND, 90, "global"), offer(ER, None, "anchor"), offer(IC, None, "anchor")]
    figures = VerifierQuality().figures([ITEMS[IC]], [Result(id="a", value={"offers": rejected})])
    assert figures["roc"] == {"auc": 0.5, "points": [], "youden": None, "precise_tau": None}


def test_a_verifier_that_is_worse_than_chance_has_no_best_threshold() -> None:
    offers = [offer(ND, 95), offer(ER, 90), offer(IC, None, "global")]
    roc = VerifierQuality().figures([ITEMS[IC]], [Result(id="a", value={"offers": offers})])["roc"]
    assert [(point["tau"], point["tpr"], point["fpr"]) for point in roc["points"]] == [(95, 0, 0.5), (90, 0, 1)]
    assert (roc["youden"], roc["precise_tau"]) == (None, None)


def test_without_a_result_there_is_no_curve() -> None:
    figures = VerifierQuality().figures([ITEMS[IC]], [Result(id="a", kind="truncated", reason="no end")])
    assert figures["roc"] is None
    assert figures["acceptance"]["IC"]["IC"] == {"n": 0, "accepted": 0, "rate": None, "interval": None}
    assert figures["calls"] == {"extraction": 0, "verification": 0, "per_item": None}
    assert figures["failed"] == {"truncated": 1}


def test_the_settings_decide_the_results() -> None:
    given = {"tau": 70, "temperature": 0.2, "method_prompts": prompts.version()}
    assert VerifierQuality(tau=70, temperature=0.2).snapshot() == given
