"""What a detector's answer says, also where it doesn't follow the form: its label, or why there is none."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal

from synuc.formatting import JUDGMENT
from synuc.types import Label

Unreadable = Literal["cut_off", "refusal", "unparseable"]
"""Why an answer has no readable label: its tokens were used up, the model declined, or it says something else."""

EMPHASIS = "*_`# "
"""Markdown that chat models put around headings and verdicts."""


_THOUGHTS = re.compile(r"<think>(.*?)</think>", re.DOTALL)


def split_thoughts(text: str) -> tuple[str, str]:
    """What a model thought inside `<think>…</think>`, and what a reader gets to see.

    Without an opening tag, all before `</think>` is thought (chat templates may have written it); without a closing
    tag, all after `<think>` is (the answer was cut off while thinking).
    """
    before, _, after = _THOUGHTS.sub("", text).rpartition("</think>")
    seen, _, unclosed = after.partition("<think>")
    thoughts = [part.strip() for part in (before, *_THOUGHTS.findall(text), unclosed)]
    return "\n".join(part for part in thoughts if part), seen.strip()


def visible(text: str) -> str:
    """What a reader gets to see of an answer: what a model thinks is none."""
    return split_thoughts(text)[1]


def read_label(text: str) -> Label | None:
    """The label that an answer ends in, or None: a default would reward answers that say nothing.

    The rest of the answer may have any form, but `[Final Judgment]` stands on one line only and the words of one label
    are all that follows it, plain or emphasised. Thoughts don't count, and an answer in which one begins and doesn't
    end has no label.
    """
    spoken = text.rpartition("</think>")[2]
    if "<think>" in spoken:
        return None
    lines = [" ".join(line.split()).strip(EMPHASIS) for line in spoken.splitlines()]
    if lines.count(JUDGMENT) != 1:
        return None
    words = " ".join(line for line in lines[lines.index(JUDGMENT) + 1 :] if line)
    return next((label for label in Label if label.words == words), None)


_REFUSAL = re.compile(
    r"\b(?:I|we)(?: am|'m|’m)? (?:can(?:no|')t|can’t|won['’]t|will not|am not able|not able|unable|must decline)\b"
    r"|\b(?:I['’]m|I am) sorry\b|\bas an AI\b|抱歉|对不起|無法|无法(?:提供|协助|帮助|回答)|不能(?:提供|协助|帮助|回答)",
    re.IGNORECASE,
)
REFUSAL_WITHIN = 200
"""Characters of an answer in which it says that it declines."""


def unreadable(text: str, cut: bool) -> Unreadable:
    """Why `text`, an answer without a readable label, has none. `cut`: its tokens were used up."""
    if cut:
        return "cut_off"
    return "refusal" if _REFUSAL.search(visible(text)[:REFUSAL_WITHIN]) else "unparseable"


def label_probabilities(first: Mapping[str, float]) -> dict[Label, float] | None:
    """The labels' probabilities from the log-probabilities of an answer's first token, or None if no label is there.

    A token counts for the one label whose words it begins; the three probabilities are normalised to their sum.
    """
    mass = dict.fromkeys(Label, 0.0)
    for token, logprob in first.items():
        begin = token.strip(EMPHASIS + "\n")
        # One letter says too little: many an answer begins with "I".
        begun = [label for label in Label if len(begin) > 1 and label.words.startswith(begin)]
        if len(begun) == 1:
            mass[begun[0]] += math.exp(logprob)
    total = sum(mass.values())
    return {label: share / total for label, share in mass.items()} if total > 0 else None
