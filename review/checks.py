"""What can be checked of an answer: the requirements of Appendix B.2, and what the benchmark needs.

A finding that `must` be mended stops the answer. The others may be wrong (words say little about meaning), so the
writer may stand by the answer; what they confirmed is kept and shown to the evaluators.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from review.content import Content, fingerprint
from review.forms import Form, Kind, Labelled, Rewritten, Why
from synuc.folding import folded
from synuc.types import Dialogue, Frozen, Label, Relation

GOAL_CHARS = 200
LONGEST = 3
"""How many times as long as the user's longest message a follow-up may be."""
LONG_CHARS = 300
"""A follow-up that is no longer is never too long."""

REVISIONS = tuple((Path(__file__).parent / "revisions.txt").read_text("utf-8").splitlines())
"""Words that announce a revision. People mix languages, so all are looked for everywhere."""

REVEALING = ("implicit conflict", "explicit revision", "隐性冲突", "隐式冲突", "显性修改", "显式修改")
EXPLAINING = ("conflict", "contradict", "incompatible", "inconsistent with", "冲突", "矛盾", "不相容", "不一致")


class Finding(Frozen):
    """Something about an answer. `code` is for programs, `words` are those that were found."""

    code: str
    must: bool
    words: tuple[str, ...] = ()


def findings(kind: Kind, form: Form, content: Content) -> tuple[Finding, ...]:
    """What is to be said about an answer before it is taken."""
    match form:
        case Labelled() if kind is Kind.BENCHMARK:
            return tuple(_labelled(form, content))
        case Rewritten():
            return tuple(_rewritten(form, content))
        case _:
            return ()


def open_findings(kind: Kind, form: Form, content: Content) -> tuple[Finding, ...]:
    """Those that stand in the way: what must be mended, and what the writer hasn't confirmed."""
    confirmed = form.confirmed if isinstance(form, Rewritten) else ()
    return tuple(found for found in findings(kind, form, content) if found.must or found.code not in confirmed)


def signals(text: str) -> tuple[str, ...]:
    """The words of a text that announce a revision."""
    return _there(text, REVISIONS)


def _labelled(form: Labelled, content: Content) -> Iterator[Finding]:
    if form.label is Label.IC and (form.why is None or not form.why.text.strip()):
        yield Finding(code="why_missing", must=True)
    if form.label is Label.ND and form.why is not None:
        yield Finding(code="why_for_nd", must=True)
    if form.why is not None and form.label is not Label.ND:
        yield from _why(form.why, form.label, content, content.follow_up)


def _rewritten(form: Rewritten, content: Content) -> Iterator[Finding]:
    if form.history != fingerprint(content.dialogue):
        yield Finding(code="history_changed", must=True)
    yield from _goal(form.goal.strip())
    if not form.why.text.strip():
        yield Finding(code="why_missing", must=True)
    yield from _why(form.why, form.target, content, form.follow_up)
    follow_up = form.follow_up.strip()
    said = [content.follow_up.strip(), *(turn.user.strip() for turn in content.dialogue.turns)]
    if not follow_up:
        yield Finding(code="follow_up_missing", must=True)
        return
    if folded(follow_up) in map(folded, said):
        yield Finding(code="follow_up_repeated", must=True)
    if words := _there(follow_up, REVEALING):
        yield Finding(code="category_revealed", must=True, words=words)
    elif words := _there(follow_up, EXPLAINING):
        yield Finding(code="conflict_explained", must=False, words=words)
    found = signals(follow_up)
    if form.target is Label.IC and found:
        yield Finding(code="revision_signal", must=False, words=found)
    if form.target is Label.ER and not found:
        yield Finding(code="no_revision_signal", must=False)
    if len(follow_up) > max(LONG_CHARS, LONGEST * max(map(len, said))):
        yield Finding(code="long", must=False)
    if _chinese(follow_up) != _chinese("".join(said)):
        yield Finding(code="other_language", must=False)


def _goal(goal: str) -> Iterator[Finding]:
    if not goal:
        yield Finding(code="goal_missing", must=True)
    elif len(goal) > GOAL_CHARS or re.search(r"[.!?]\s+\S|[。！？；]\s*\S|\n", goal):
        yield Finding(code="goal_not_one_sentence", must=False)


def _why(why: Why, label: Label, content: Content, follow_up: str) -> Iterator[Finding]:
    """The pair, where it is given: of the label's types, and quoted as it was said."""
    if (why.historical is None) != (why.new is None):
        yield Finding(code="half_a_pair", must=True)
    if why.historical is None or why.new is None:
        return
    if Relation.of(why.historical.type, why.new.type).label is not label:
        yield Finding(code="types_of_other_label", must=True)
    old, new = why.historical.evidence, why.new.evidence
    quotes = ((old, bool(turns_saying(old, content.dialogue))), (new, folded(new) in folded(follow_up)))
    if words := tuple(quote for quote, said in quotes if not said):
        yield Finding(code="not_said", must=False, words=words)


def turns_saying(words: str, dialogue: Dialogue) -> list[int]:
    """The user turns, from 1, in which the words stand, whatever their case and the spaces between them."""
    return [number for number, turn in enumerate(dialogue.turns, 1) if folded(words) in folded(turn.user)]


def _there(text: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """The `words` in a text; English ones as whole words."""
    text = folded(text).replace("’", "'")
    return tuple(
        word for word in words if re.search(rf"\b{re.escape(word)}(?:s|ed|ing)?\b" if word.isascii() else word, text)
    )


def _chinese(text: str) -> bool:
    """Whether a text is mostly in Chinese: a character there says about as much as three letters do."""
    characters = len(re.findall(r"[\u3400-\u9fff]", text))
    return 3 * characters > len(re.findall(r"[A-Za-z]", text))
