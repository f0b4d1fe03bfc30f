"""The classification protocol: what it asks in each form and mode, and what it makes of the answers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eval.bench import read_bench
from eval.protocol import Item, Result
from eval.uc import Classification, predicted_label
from synuc.formatting import Retention
from synuc.types import Label, LLMRequest, Spoken

ITEMS: list[Item] = [
    item.model_dump(mode="json") for item in read_bench([Path(__file__).parents[1] / "data" / "uc_bench.jsonl"]).items
]
REASONED = Classification(Retention.FULL, "zero_shot", "reasoned", 0.01, 512)
LABEL = replace(REASONED, mode="label")
CONFLICT = "They clash.\n\n[Final Judgment]\nImplicit Conflict"


def spoken(text: str, **more: Any) -> Spoken:
    return Spoken(text=text, **{"cut": False, "prompt_tokens": 700, **more})


def asked(evaluation: Classification, item: Item = ITEMS[0]) -> LLMRequest:
    request = next(evaluation.program(item))
    assert isinstance(request, LLMRequest)
    return request


def answered(evaluation: Classification, answer: Spoken, item: Item = ITEMS[0]) -> Result:
    program = evaluation.program(item)
    next(program)
    with pytest.raises(StopIteration) as end:
        program.send(answer)
    return Result(id=item["id"], value=end.value.value)


def shown(request: LLMRequest) -> str:
    return "\n".join(message["content"] for message in request.messages)


@pytest.mark.parametrize("prompt", ["zero_shot", "trained"])
@pytest.mark.parametrize("mode", ["reasoned", "label"])
def test_every_form_shows_the_dialogue_and_not_the_answer(prompt: Any, mode: Any) -> None:
    for item in ITEMS:
        text = shown(asked(replace(REASONED, prompt=prompt, mode=mode), item))
        for turn in item["history"]["turns"]:
            assert all(line in text for line in turn["user"].splitlines())
        assert all(f"> {line}" in text for line in item["follow_up"].splitlines())
        # All three labels are offered, and of the gold rationale nothing is shown.
        assert all(label.words in text for label in Label)
        if item["rationale"]:
            assert item["rationale"]["text"] not in text


def test_the_paper_s_temperature_and_the_run_s_bound() -> None:
    request = asked(REASONED)
    assert (request.temperature, request.max_tokens, request.logprobs, request.begun) == (0.01, 512, False, "")
    at_once = asked(replace(LABEL, prompt="trained"))
    assert (at_once.logprobs, at_once.begun) == (True, "[Final Judgment]\n")
    assert at_once.max_tokens < 20


@pytest.mark.parametrize(
    ("answer", "predicted", "kind"),
    [
        (spoken(CONFLICT), "IC", ""),
        (spoken("<think>ER?</think>" + CONFLICT), "IC", ""),
        (spoken("Implicit Conflict"), None, "unparseable"),
        (spoken(CONFLICT + " or Explicit Revision"), None, "unparseable"),
        (spoken("I'm sorry, but I can't help with that."), None, "refusal"),
        (spoken("抱歉，我无法协助。"), None, "refusal"),
        (spoken("They clash, because", cut=True), None, "cut_off"),
    ],
)
def test_what_is_read_of_an_answer(answer: Spoken, predicted: str | None, kind: str) -> None:
    value = answered(REASONED, answer).value
    assert value is not None
    assert (value["predicted"], value["kind"], value["answer"]) == (predicted, kind, answer.text)
    assert value["probabilities"] is None


def test_the_label_at_once_is_the_likeliest_and_has_probabilities() -> None:
    first = {"Imp": math.log(0.6), "Normal": math.log(0.2), "The": math.log(0.2)}
    value = answered(LABEL, spoken("Implicit Conflict", first=first)).value
    assert value is not None
    assert value["predicted"] == "IC"
    assert value["probabilities"] == pytest.approx({"IC": 0.75, "ND": 0.25, "ER": 0})
    # An endpoint that gives no candidates: the label is read, and there is nothing to calibrate.
    bare = answered(LABEL, spoken("Explicit Revision", cut=True)).value
    assert bare is not None
    assert (bare["predicted"], bare["probabilities"]) == ("ER", None)


def test_what_has_no_label_is_wrong_and_counted_by_its_kind() -> None:
    items = ITEMS[:6]
    answers = [CONFLICT, "I can't.", "Who knows"]
    results = [answered(REASONED, spoken(text), item) for text, item in zip(answers, items[:3], strict=True)]
    results.append(answered(REASONED, spoken("They", cut=True), items[3]))
    results.append(Result(id=items[4]["id"], kind="content_filter", reason="the endpoint withheld the answer"))
    results.append(Result(id=items[5]["id"], kind="crashed", reason="gone"))
    assert [predicted_label(result) for result in results] == [Label.IC, *[None] * 5]
    figures = REASONED.figures(items, results)
    # What the model says and what its provider withholds are refusals alike.
    assert figures["kinds"] == {"unparseable": 1, "refusal": 2, "cut_off": 1, "failed": 1}
    assert figures["overall"]["unparseable"] == pytest.approx(5 / 6)
    assert figures["overall"]["accuracy"] == pytest.approx((items[0]["label"] == "IC") / 6)
    assert sum(sum(row.values()) for row in figures["confusion"].values()) == 6
    assert figures["calibration"] is None


def test_a_label_that_no_item_has_is_named() -> None:
    items = [item for item in ITEMS if item["label"] == "ND"]
    figures = REASONED.figures(items, [answered(REASONED, spoken(CONFLICT), item) for item in items])
    assert figures["overall"]["absent"] == ["ER", "IC"]
    assert figures["overall"]["recall_ic"] is None
    assert figures["intervals"]["recall_ic"] is None
    # Both languages are there, and each is a slice of its own.
    assert {name: part["n"] for name, part in figures["slices"]["language"].items()} == {"en": 6, "zh": 6}
