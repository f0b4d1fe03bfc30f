"""The question to the user when two of their requirements can't hold together."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from serving.detection import Choice, Clarification, Found
from synuc.language import DENSE, Language

SIDE = 160
"""Characters of a constraint or a message that a question quotes."""

BUTTON = 48
"""Characters of a constraint that a choice's label quotes."""

NEAR = 24
"""How many characters a cut may move back to fall between words."""


@dataclass(frozen=True)
class _Texts:
    """The sentences of a language. `{h}` and `{n}`: the historical and the new side; `{f}`: the follow-up."""

    historical: dict[str, str]
    new: dict[str, str]
    question: str
    general: str
    keep: tuple[str, str]
    change: tuple[str, str]
    keep_general: tuple[str, str]
    change_general: tuple[str, str]
    other: tuple[str, str]


_TEXTS: dict[Language, _Texts] = {
    "en": _Texts(
        historical={
            "explicit": "Earlier you asked for this: “{h}”.",
            "implicit": "What you said earlier calls for this: “{h}”.",
        },
        new={
            "explicit": "Your last message asks for this: “{n}”.",
            "implicit": "Your last message calls for this: “{n}”.",
        },
        question="{historical} {new} I don't see how both can hold at once. Which one should I go by?",
        general="Your last message, “{f}”, doesn't seem to go together with something that you wanted earlier. "
        "Should I keep to what you wanted earlier, or go by your last message?",
        keep=("Keep: {h}", "Keep to this: “{h}”. Please fit my last message to it."),
        change=("Change to: {n}", "I change my mind: “{n}” now counts instead of “{h}”."),
        keep_general=("Keep what I wanted earlier", "Keep to what I wanted earlier. Please fit my last message to it."),
        change_general=(
            "Go by my last message",
            "I change my mind: my last message counts, instead of what it rules out.",
        ),
        other=("Something else", "Neither as it stands. Please ask me what I want before you go on."),
    ),
    "zh": _Texts(
        historical={"explicit": "您之前要求：“{h}”。", "implicit": "按您之前所说，需要：“{h}”。"},
        new={"explicit": "您最新的消息要求：“{n}”。", "implicit": "您最新的消息意味着：“{n}”。"},
        question="{historical}{new}这两点似乎无法同时满足。应该以哪一个为准？",
        general="您最新的消息“{f}”似乎与您之前的要求无法同时满足。应该保留之前的要求，还是以最新的消息为准？",
        keep=("保留：{h}", "保留这个要求：“{h}”。请据此调整我最新的消息。"),
        change=("改为：{n}", "我改主意了：以“{n}”为准，不再要求“{h}”。"),
        keep_general=("保留之前的要求", "保留我之前的要求。请据此调整我最新的消息。"),
        change_general=("以最新的消息为准", "我改主意了：以我最新的消息为准，与它冲突的要求作废。"),
        other=("其他", "两者都不完全对。请先问清我的想法，再继续。"),
    ),
}


def clarification(follow_up: str, historical: Found | None, new: Found | None, language: Language) -> Clarification:
    """What to ask about an implicit conflict: both sides in the detector's words, and the answers to choose from.

    Without a pair the question is general and quotes the follow-up. A choice's message is in the user's voice; the one
    that changes a requirement admits it, so that a detector takes it for a revision. All quoted text is `plain`: it
    can neither end a line nor be taken for markup, and has at most `SIDE` characters, `BUTTON` on a label.
    """
    texts = _TEXTS[language]
    if historical is None or new is None:
        question = texts.general.format(f=plain(follow_up, SIDE))
        keep, change = texts.keep_general, texts.change_general
        sides = buttons = {}
    else:
        sides, buttons = (
            {"h": plain(historical.value, limit), "n": plain(new.value, limit)} for limit in (SIDE, BUTTON)
        )
        question = texts.question.format(
            historical=texts.historical[historical.type].format(**sides), new=texts.new[new.type].format(**sides)
        )
        keep, change = texts.keep, texts.change
    return Clarification(
        language=language,
        question=question,
        choices=(
            Choice(id="keep", label=keep[0].format(**buttons), message=keep[1].format(**sides)),
            Choice(id="change", label=change[0].format(**buttons), message=change[1].format(**sides)),
            Choice(id="other", label=texts.other[0], message=texts.other[1]),
        ),
    )


# What HTML or Markdown could take for markup, and “ ” in which we quote, as look-alikes without a meaning.
_HARMLESS = str.maketrans("<>[]`*~“”", "‹›［］ˋ∗∼‘’")
_EMPHASIS = re.compile(r"(?<![^\W_])_|_(?![^\W_])")


def plain(text: str, limit: int) -> str:
    """`text` as one line without control characters and markup, at most `limit` characters long.

    What could be markup keeps its looks: `<b>` becomes `‹b›`. A text that is too long ends in `…`, between two words
    where one ends near.
    """
    # Newlines and tabs are control characters as well, and become spaces; invisible ones vanish.
    spaced = "".join(" " if char.isspace() else char for char in text)
    visible = "".join(char for char in spaced if unicodedata.category(char)[0] != "C")
    text = _EMPHASIS.sub("＿", " ".join(visible.split()).translate(_HARMLESS))
    if len(text) <= limit:
        return text
    cut = limit - 1
    # Inside a word of a script with spaces: back to where it begins.
    letter = rf"[^\W{DENSE}]"
    if re.match(letter, text[cut]) and (word := re.search(rf"(?<!{letter})(?<!^){letter}{{1,{NEAR}}}\Z", text[:cut])):
        cut = word.start()
    return text[:cut].rstrip(" ,.;:，。；：、") + "…"
