"""The response protocol (paper, section 3.2): left alone, does a model notice that a message clashes with its chat?"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import StringConstraints

from eval.judging import JUDGE, Row, accuracy, ask_judge, described, failures, grouped, joined
from eval.protocol import Item, Result
from synuc.effects import Program
from synuc.reading import visible
from synuc.replies import Reason, Reply
from synuc.types import Dialogue, LLMRequest, Spoken


class Recognition(Reply):
    """The judge's verdict on an answer. `evidence`: its decisive words, empty if it has none."""

    evidence: Annotated[str, StringConstraints(max_length=400)]
    reason: Reason
    recognised: bool


@dataclass(frozen=True)
class Response:
    """Does the answer to an implicit conflict recognise it? The model gets the plain chat and no instruction.

    Only what the user can read is judged; an answer without any of it is not asked about and doesn't recognise
    anything. `temperature` and `max_tokens` are those of the evaluated model.

    A result: `answer` (thoughts included), `cut` (ended by `max_tokens`), `evidence`, `reason`, `recognised`.
    """

    temperature: float = 0.01
    max_tokens: int = 2048
    name = "response"

    def snapshot(self) -> dict[str, Any]:
        return asdict(self)

    def program(self, item: Item) -> Program[dict[str, Any]]:
        """The model's answer, then the verdict on it; a failure of the judge has a kind that begins with `judge_`."""
        answer: Spoken = yield LLMRequest(
            stage="response",
            role="model",
            key=item["id"],
            messages=chat(item),
            reply=Spoken,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
        )
        said = visible(answer.text)
        verdict = Recognition(evidence="", reason="the answer holds nothing that the user can read", recognised=False)
        if said:
            verdict = yield from ask_judge(
                "judge_response",
                item["id"],
                Recognition,
                rationale=described(item),
                follow_up=item["follow_up"],
                answer=said,
            )
        return {"answer": answer.text, "cut": answer.cut, **verdict.model_dump()}

    def figures(self, items: Sequence[Item], results: Sequence[Result]) -> dict[str, Any]:
        """`overall`, and by name `subsets` and `languages`: `n` judged answers, `correct`, `accuracy`, its `interval`.

        Failures of the judge are excluded from `n`; where the model itself failed, it recognised nothing. Both are
        counted by kind, in `judge_failed` and `failed`. Answers that were `cut_off` or `empty` (nothing to read) are
        counted and stay in. `items`: how many there were.
        """
        unjudged = {result.id for result in results if result.kind.startswith(JUDGE)}
        rows = joined(items, results)
        values = [value for _, value in rows if value is not None]
        return {
            "items": len(items),
            "overall": _accuracy(rows, unjudged),
            "subsets": {name: _accuracy(part, unjudged) for name, part in grouped(rows, "subset").items()},
            "languages": {name: _accuracy(part, unjudged) for name, part in grouped(rows, "language").items()},
            "cut_off": sum(value["cut"] for value in values),
            "empty": sum(not visible(value["answer"]) for value in values),
            **failures(results),
        }


def _accuracy(rows: Sequence[Row], unjudged: Set[str]) -> dict[str, Any]:
    values = [value for item, value in rows if item["id"] not in unjudged]
    return accuracy(sum(value is not None and value["recognised"] for value in values), len(values))


def chat(item: Item) -> tuple[dict[str, str], ...]:
    """A bench item as the messages of an ordinary chat: system message if there is one, all turns, the follow-up."""
    dialogue = Dialogue.model_validate(item["history"])
    messages = [{"role": "system", "content": dialogue.system}] if dialogue.system else []
    for turn in dialogue.turns:
        messages += [{"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.assistant}]
    return (*messages, {"role": "user", "content": item["follow_up"]})
