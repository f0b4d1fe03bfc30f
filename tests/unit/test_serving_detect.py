"""The program that judges a follow-up: what it asks, and what it makes of the answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from serving.config import DetectorConfig
from serving.detect import EVIDENCE, detect
from serving.detection import Detection, DetectRequest, Mode, Span, TooLong
from synuc.formatting import JUDGMENT, Answer, Item, Named, Retention, detector_messages, format_answer
from synuc.neutralise import BREAK
from synuc.types import CallFailed, Dialogue, Label, LLMRequest, Relation, Spoken, TaskHierarchy, Turn
from tests.evaluation import drive

TRIP = Dialogue(
    turns=(
        Turn(user="Plan a weekend trip for my wife and kids. Keep it relaxed.", assistant="Sure. " * 200),
        Turn(user="Please avoid crowded places; the kids should enjoy themselves too.", assistant="Got it."),
    )
)
FOLLOW_UP = "Great. Can you also add a late-night jazz show?"
CROWDS = Item(type="explicit", dimension="content_scope", value="avoid crowded places")
FAMILY = Item(
    type="implicit", dimension="audience", value="family-friendly", inferred_from="the kids should enjoy themselves"
)
JAZZ = Item(type="explicit", dimension="content_scope", value="add a late-night jazz show")


def answer(label: Label, **more: Any) -> str:
    fields: dict[str, Any] = {
        "tasks": TaskHierarchy(active_main_task="plan a trip", active_subtask="plan a trip"),
        "continues": "current_main_task",
        "historical": (CROWDS, FAMILY),
        "new": (JAZZ,),
        "analysis": "A late-night show is not for kids.",
    }
    return format_answer(Answer(label=label, **(fields | more)))


CONFLICT = answer(Label.IC, relation=Relation.H_I_N_E, anchor=FAMILY.named, new_constraint=JAZZ.named)
FREE = "The trip is for kids; a late show isn't.\n\n**[Final Judgment]**\n**Implicit Conflict**"
FIRST = {"Implicit": math.log(0.6), "Normal": math.log(0.3), "Ex": math.log(0.1), "The": -9.0}


def config(**more: Any) -> DetectorConfig:
    return DetectorConfig.model_validate({"engine": {"kind": "vllm", "model": "m"}, "max_tokens": 300, **more})


def judged(
    script: Callable[[LLMRequest], Any],
    mode: Mode = "reasoned",
    dialogue: Dialogue = TRIP,
    follow_up: str = FOLLOW_UP,
    asked: list[LLMRequest] | None = None,
    **more: Any,
) -> Detection:
    request = DetectRequest(dialogue=dialogue, follow_up=follow_up)
    detection = drive(detect(request, config(**more), mode), script, asked)
    # What is built without validation is valid.
    return Detection.model_validate(detection.model_dump())


def says(text: str, first: dict[str, float] | CallFailed = FIRST) -> Callable[[LLMRequest], Any]:
    """A model that answers `text`, and gives `first` where it is asked for one token."""

    def script(request: LLMRequest) -> Any:
        if not request.logprobs:
            return text
        return first if isinstance(first, CallFailed) else Spoken(text="Impl", cut=True, first=first)

    return script


def test_fast_takes_one_token_behind_the_heading() -> None:
    asked: list[LLMRequest] = []
    detection = judged(says("", FIRST), "fast", asked=asked, retention="omit")
    [request] = asked
    assert request.messages == tuple(detector_messages(TRIP, FOLLOW_UP, Retention.OMIT))
    assert (request.begun, request.logprobs, request.max_tokens) == (f"{JUDGMENT}\n", True, 1)
    assert (request.role, request.reply, request.temperature) == ("model", Spoken, 0.0)
    assert (detection.label, detection.mode, detection.model, detection.reason) == ("IC", "fast", "m", "")
    assert detection.probabilities == pytest.approx({Label.ND: 0.3, Label.ER: 0.1, Label.IC: 0.6})
    assert detection.constraints == ()
    assert detection.historical is None
    assert detection.clarification is not None
    assert FOLLOW_UP in detection.clarification.question


def test_fast_without_training_asks_for_the_label_alone() -> None:
    asked: list[LLMRequest] = []
    detection = judged(says("", {"Normal": -0.1, "Explicit": -3.0}), "fast", asked=asked, prompt="zero_shot")
    [request] = asked
    assert f"# Follow-up\n> {FOLLOW_UP}\n\nAnswer with the label alone" in request.messages[0]["content"]
    assert (request.begun, request.max_tokens) == ("", 1)
    assert detection.label == "ND"
    assert detection.clarification is None


@pytest.mark.parametrize(("first", "reason"), [({"The": -0.1}, "unparseable"), ({}, "unparseable")])
def test_fast_without_a_label_among_the_candidates(first: dict[str, float], reason: str) -> None:
    detection = judged(says("", first), "fast")
    assert (detection.label, detection.reason, detection.probabilities) == ("undetermined", reason, None)


def test_a_conflict_with_all_that_it_rests_on() -> None:
    asked: list[LLMRequest] = []
    detection = judged(says(CONFLICT), asked=asked)
    reasoned, label = asked
    assert (reasoned.begun, reasoned.logprobs, reasoned.max_tokens) == ("", False, 300)
    assert label.messages == reasoned.messages
    assert (label.begun, label.logprobs, label.max_tokens) == (CONFLICT.removesuffix("Implicit Conflict"), True, 1)
    assert reasoned.key == label.key

    assert (detection.label, detection.relation) == ("IC", Relation.H_I_N_E)
    assert detection.probabilities == pytest.approx({Label.ND: 0.3, Label.ER: 0.1, Label.IC: 0.6})
    assert detection.reasoning == "A late-night show is not for kids."
    crowds, family = detection.constraints
    [jazz] = detection.new_constraints
    assert (detection.historical, detection.new) == (family, jazz)
    assert (family.evidence, family.where) == ("the kids should enjoy themselves", Span(turn=2, start=29, end=61))
    assert (crowds.evidence, crowds.where) == ("avoid crowded places", Span(turn=2, start=7, end=27))
    assert (jazz.evidence, jazz.where) == ("add a late-night jazz show", Span(turn=3, start=20, end=46))
    assert detection.clarification is not None
    assert detection.clarification.language == "en"
    assert "“family-friendly”" in detection.clarification.question


def test_a_constraint_that_stands_nowhere_has_no_place() -> None:
    vague = Item(type="explicit", dimension="style", value="不要太长")
    guess = Item(type="implicit", dimension="budget", value="cheap", inferred_from="nothing of the kind")
    detection = judged(says(answer(Label.ND, historical=(vague, guess), new=())))
    assert [(found.evidence, found.where) for found in detection.constraints] == [
        ("", None),
        (guess.inferred_from, None),
    ]
    assert (detection.label, detection.historical, detection.clarification) == ("ND", None, None)


def test_a_revision_needs_no_question() -> None:
    more = {"relation": Relation.H_E_N_E, "anchor": CROWDS.named, "new_constraint": JAZZ.named}
    detection = judged(says(answer(Label.ER, **more)))
    assert (detection.label, detection.clarification) == ("ER", None)
    assert detection.historical == detection.constraints[0]


def test_the_question_speaks_the_users_language() -> None:
    dialogue = Dialogue(turns=(Turn(user="给孩子们安排一次旅行", assistant="好的"),))
    for follow_up, language in (("再加一场深夜爵士乐演出", "zh"), ("500!", "zh"), ("Add jazz", "en")):
        detection = judged(says(FREE), dialogue=dialogue, follow_up=follow_up)
        assert detection.clarification is not None
        assert detection.clarification.language == language


def test_a_free_answer_has_a_label_and_no_pair() -> None:
    asked: list[LLMRequest] = []
    detection = judged(says(FREE), asked=asked, prompt="zero_shot")
    assert "First reason in a few sentences" in asked[0].messages[0]["content"]
    assert asked[1].messages == asked[0].messages
    assert asked[1].begun == FREE.removesuffix("Implicit Conflict**")
    assert (detection.label, detection.relation, detection.constraints) == ("IC", None, ())
    assert detection.reasoning == "The trip is for kids; a late show isn't."
    assert detection.probabilities is not None
    assert detection.clarification is not None
    assert FOLLOW_UP in detection.clarification.question


def test_the_label_is_looked_for_where_the_answer_ends() -> None:
    asked: list[LLMRequest] = []
    text = f"Is it an Implicit Conflict? No.\n{JUDGMENT}\n Normal Dialogue\n"
    assert judged(says(text), asked=asked).label == "ND"
    assert asked[1].begun == f"Is it an Implicit Conflict? No.\n{JUDGMENT}\n"


@pytest.mark.parametrize("first", [{}, {"The": -0.1}, CallFailed("context_length", "too long")])
def test_the_label_stands_without_its_probabilities(first: dict[str, float] | CallFailed) -> None:
    detection = judged(says(CONFLICT, first))
    assert (detection.label, detection.probabilities, detection.reason) == ("IC", None, "")
    assert detection.historical is not None


@pytest.mark.parametrize(
    ("said", "reason", "reasoning"),
    [
        (Spoken(text="Well, let me think about", cut=True), "cut_off", "Well, let me think about"),
        (Spoken(text="I'm sorry, I can't help with that."), "refusal", "I'm sorry, I can't help with that."),
        (Spoken(text=f"{JUDGMENT}\nPerhaps"), "unparseable", f"{JUDGMENT}\nPerhaps"),
        (Spoken(text=f"{CONFLICT}\nor Normal Dialogue"), "unparseable", f"{CONFLICT}\nor Normal Dialogue"),
        (CallFailed("content_filter", "withheld"), "content_filter", ""),
    ],
)
@pytest.mark.parametrize("prompt", ["trained", "zero_shot"])
def test_what_cant_be_read_is_undetermined(said: Any, reason: str, reasoning: str, prompt: str) -> None:
    asked: list[LLMRequest] = []
    detection = judged(lambda request: said, asked=asked, prompt=prompt)
    assert len(asked) == 1
    assert (detection.label, detection.reason, detection.reasoning) == ("undetermined", reason, reasoning)
    assert detection.probabilities is None
    assert detection.clarification is None


@pytest.mark.parametrize("mode", ["fast", "reasoned"])
def test_a_dialogue_of_too_many_tokens_is_no_verdict(mode: Mode) -> None:
    with pytest.raises(TooLong, match="too long"):
        judged(lambda request: CallFailed("context_length", "too long"), mode)


def test_a_failed_call_is_undetermined_in_mode_fast_too() -> None:
    detection = judged(says("", CallFailed("bad_request", "no")), "fast")
    assert (detection.label, detection.reason, detection.mode) == ("undetermined", "bad_request", "fast")


@pytest.mark.parametrize("turns", [(), (Turn(user="", assistant="Hello! How can I help?"),)])
@pytest.mark.parametrize("mode", ["fast", "reasoned"])
def test_without_a_history_the_model_isnt_asked(turns: tuple[Turn, ...], mode: Mode) -> None:
    asked: list[LLMRequest] = []
    detection = judged(says(CONFLICT), mode, Dialogue(turns=turns), asked=asked)
    assert asked == []
    assert (detection.label, detection.probabilities, detection.reason) == ("ND", None, "")


def test_control_tokens_come_back_as_the_dialogue_has_them_and_never_reach_the_engine_whole() -> None:
    token = "<|im_end|>"
    dialogue = Dialogue(turns=(Turn(user=f"Never print {token} in code.", assistant="ok"),))
    item = Item(type="explicit", dimension="form", value=f"never print {token}")
    text = answer(
        Label.ER,
        historical=(item,),
        relation=Relation.H_E_N_E,
        anchor=Named(type="explicit", dimension="form", value=f"never print {token}"),
        new_constraint=JAZZ.named,
    )
    asked: list[LLMRequest] = []
    detection = judged(says(text.replace(BREAK, "")), dialogue=dialogue, follow_up=f"Print {token}.", asked=asked)
    [found] = detection.constraints
    assert found == detection.historical
    assert (found.value, found.evidence) == (f"never print {token}", f"Never print {token}")
    assert found.where == Span(turn=1, start=0, end=len(f"Never print {token}"))
    for request in asked:
        assert token not in request.begun
        assert token not in request.messages[0]["content"]
    assert token.replace("<", f"<{BREAK}") in asked[1].begun


def test_evidence_is_bounded() -> None:
    """Between two words of a passage anything may stand."""
    dialogue = Dialogue(turns=(Turn(user=f"avoid crowded{' .' * 5_000} places", assistant="Got it."),))
    found = judged(lambda request: Spoken(text=CONFLICT, first=FIRST), dialogue=dialogue)
    [crowds] = [one for one in found.constraints if one.value == CROWDS.value]
    assert crowds.where == Span(turn=1, start=0, end=len(dialogue.turns[0].user))
    assert len(crowds.evidence) == EVIDENCE
