"""How a follow-up is judged: a program that asks the model and reads its answer. It does no I/O."""

from __future__ import annotations

from typing import Any

from serving.clarify import clarification
from serving.config import DetectorConfig
from serving.detection import UNDETERMINED, Detection, DetectRequest, Found, Mode, TooLong
from serving.locate import Places
from synuc.effects import Program
from synuc.formatting import JUDGMENT, Answer, Asked, Item, Named, messages_for, parse_answer
from synuc.language import spoken_to
from synuc.neutralise import BREAK, neutralise
from synuc.reading import EMPHASIS, label_probabilities, read_label, unreadable, visible
from synuc.types import CallFailed, LLMRequest, Spoken

EVIDENCE = 1_000
"""Characters of a constraint's evidence: a passage of the dialogue can be long where little of it are words."""


def detect(request: DetectRequest, config: DetectorConfig, mode: Mode) -> Program[Detection]:
    """Judge a follow-up: all of a `Detection` that follows from the model's answers. `mode` is the one to use, whatever
    the request says; who drives the program adds adapter, version, tokens and times.

    Mode `fast` asks for one token and reads the labels' probabilities there. Mode `reasoned` lets the model answer, and
    then asks for the label's probabilities behind the model's own reasoning, if it came to a label. `reasoning` is the
    analysis of an answer in the trained form, else all that a free answer says before its label. A dialogue in which
    the user hasn't said anything yet has no requirement to contradict: it is ND, and the model isn't asked.

    An answer without a readable label is `undetermined`, with its reason (`synuc.reading.Unreadable`); so is a call
    that fails, with the kind of the failure. An implicit conflict comes with its clarifying question.

    Raises:
        TooLong: the dialogue has more tokens than the model takes.
    """
    blank = Detection(label=UNDETERMINED, mode=mode, model=config.engine.model)
    if not any(turn.user.strip() for turn in request.dialogue.turns):
        return blank.model_copy(update={"label": "ND"})
    try:
        found = yield from (_fast(request, config) if mode == "fast" else _reasoned(request, config))
    except CallFailed as failed:
        if failed.kind == "context_length":
            raise TooLong(failed.reason) from None
        return blank.model_copy(update={"reason": failed.kind})
    detection = blank.model_copy(update=found)
    if detection.label != "IC":
        return detection
    earlier = (turn.user for turn in reversed(request.dialogue.turns))
    language = spoken_to(request.follow_up, *earlier)
    question = clarification(request.follow_up, detection.historical, detection.new, language)
    return detection.model_copy(update={"clarification": question})


def _fast(request: DetectRequest, config: DetectorConfig) -> Program[dict[str, Any]]:
    begun = f"{JUDGMENT}\n" if config.prompt == "trained" else ""
    spoken: Spoken = yield _one_token(request, config, "label", begun)
    probabilities = label_probabilities(spoken.first)
    if probabilities is None:
        return {"reason": unreadable(spoken.text, cut=False)}
    likeliest = max(probabilities, key=probabilities.__getitem__)
    return {"label": likeliest.value, "probabilities": probabilities}


def _reasoned(request: DetectRequest, config: DetectorConfig) -> Program[dict[str, Any]]:
    spoken: Spoken = yield _request(request, config, "reasoned", config.max_tokens)
    answer = parse_answer(spoken.text)
    label = answer.label if isinstance(answer, Answer) else read_label(spoken.text)
    said = visible(spoken.text)
    if label is None:
        return {"reason": unreadable(spoken.text, spoken.cut), "reasoning": said}
    # The label's words are the last of every answer that has one.
    begun = neutralise(spoken.text[: spoken.text.rindex(label.words.split()[0])].rstrip(" "))
    try:
        again: Spoken = yield _one_token(request, config, "reasoned", begun)
        probabilities = label_probabilities(again.first)
    except CallFailed:
        probabilities = None
    if isinstance(answer, Answer):
        found = _parts(answer, Places(request.dialogue, request.follow_up))
    else:
        found = {"reasoning": said.rpartition(JUDGMENT)[0].rstrip(EMPHASIS + "\n").strip()}
    return {**found, "label": label.value, "probabilities": probabilities}


def _one_token(request: DetectRequest, config: DetectorConfig, asked: Asked, begun: str) -> LLMRequest:
    return _request(request, config, asked, 1, begun=begun, logprobs=True)


def _request(
    request: DetectRequest,
    config: DetectorConfig,
    asked: Asked,
    max_tokens: int,
    begun: str = "",
    logprobs: bool = False,
) -> LLMRequest:
    messages = messages_for(request.dialogue, request.follow_up, config.retention, config.prompt, asked)
    return LLMRequest(
        stage="detect",
        role="model",
        key=request.message,
        messages=tuple(messages),
        reply=Spoken,
        max_tokens=max_tokens,
        begun=begun,
        logprobs=logprobs,
    )


def _parts(answer: Answer, places: Places) -> dict[str, Any]:
    """What a `Detection` shows of an answer in the trained form."""
    constraints = tuple(_found(item, places, None) for item in answer.historical)
    new_constraints = tuple(_found(item, places, places.follow_up) for item in answer.new)
    return {
        "relation": answer.relation,
        "historical": _of_pair(answer.anchor, answer.historical, constraints),
        "new": _of_pair(answer.new_constraint, answer.new, new_constraints),
        "constraints": constraints,
        "new_constraints": new_constraints,
        "reasoning": _shown(answer.analysis),
    }


def _found(item: Item, places: Places, turn: int | None) -> Found:
    """An item of the answer. An explicit constraint's evidence are the words that its value is closest to."""
    where = places.find(item.inferred_from or item.value, turn)
    evidence = item.inferred_from or (places.words(where) if where else "")
    evidence = _shown(evidence)[:EVIDENCE]
    return Found(type=item.type, dimension=item.dimension, value=_shown(item.value), evidence=evidence, where=where)


def _of_pair(named: Named | None, items: tuple[Item, ...], found: tuple[Found, ...]) -> Found | None:
    return next((one for item, one in zip(items, found, strict=True) if item.named == named), None)


def _shown(text: str) -> str:
    """A value as the dialogue has it: answers hold control tokens broken."""
    return text.replace(BREAK, "")
