"""LiteLLM's generic guardrail API, so that a LiteLLM proxy asks this service before it calls a model.

The contract is LiteLLM's (https://docs.litellm.ai/docs/adding_provider/generic_guardrail_api, beta): texts that it
found in a request, the messages they come from, and one of three actions in return.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from serving.access import Refused
from serving.guard import Judge, Policy, note, spoken

PATH = "/beta/litellm_basic_guardrail_api"


class Parameters(BaseModel):
    """`additional_provider_specific_params` of LiteLLM's configuration: those of other providers are ignored."""

    policy: Policy | None = None


class GuardrailRequest(BaseModel):
    """What LiteLLM sends. It adds fields from version to version; those that aren't used are ignored."""

    input_type: Literal["request", "response"]
    texts: list[str] | None = None
    structured_messages: list[dict[str, Any]] | None = None
    additional_provider_specific_params: Parameters | None = None


class GuardrailResponse(BaseModel):
    """What LiteLLM shall do: go on, refuse with a reason, or go on with other `texts` (as many, in the same order)."""

    action: Literal["NONE", "BLOCKED", "GUARDRAIL_INTERVENED"]
    blocked_reason: str | None = None
    texts: list[str] | None = None


def litellm_router(judge: Judge) -> APIRouter:
    """The one route of the API.

    On an implicit conflict in a request: `clarify` blocks it with the question, `inject` adds a note to the last user
    text (an image alone has none, and passes), `annotate` lets it pass. Everything else passes, answers of models too.
    """
    router = APIRouter(tags=["litellm"])

    @router.post(PATH)
    async def guardrail(body: GuardrailRequest, request: Request) -> GuardrailResponse:
        """LiteLLM's generic guardrail API."""
        if body.input_type == "response" or not body.structured_messages:
            return GuardrailResponse(action="NONE")
        record = request.scope["record"]
        given = body.additional_provider_specific_params
        record.policy = policy = (given.policy if given else None) or judge.config.policy
        detection = await judge.judge_or_allow(body.structured_messages, record)
        if detection.label == "IC" and policy == "clarify" and detection.clarification is not None:
            return GuardrailResponse(action="BLOCKED", blocked_reason=spoken(detection.clarification))
        if detection.label == "IC" and policy == "inject":
            texts = _noted(body.texts or [], body.structured_messages, note(detection))
            if texts is not None:
                return GuardrailResponse(action="GUARDRAIL_INTERVENED", texts=texts)
        return GuardrailResponse(action="NONE")

    return router


def _noted(texts: list[str], messages: list[dict[str, Any]], text: str) -> list[str] | None:
    """`texts` with `text` after the last one of the user's follow-up, None if that has no text.

    A follow-up may be several messages, and the last text of a request need not be its: the last message may hold only
    an image, and of a message of Anthropic's API LiteLLM lists the results of tools where they stand, while they come
    first in `messages`.
    """
    last = takewhile(lambda message: message.get("role") == "user", reversed(messages))
    follow_up = {each for message in last for each in _texts(message.get("content"))}
    if not follow_up:
        return None
    for index in reversed(range(len(texts))):
        if texts[index] in follow_up:
            return [*texts[:index], f"{texts[index]}\n\n[{text}]", *texts[index + 1 :]]
    raise Refused(422, "texts: none is a text of the last message in structured_messages", "invalid_request")


def _texts(content: Any) -> list[str]:
    """The texts that LiteLLM finds in a message's content."""
    parts = content if isinstance(content, list) else [{"text": content}]
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]
