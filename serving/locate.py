"""Where in the user's messages the words of a constraint stand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from serving.detection import Span
from synuc.language import UNSPACED
from synuc.neutralise import BREAK
from synuc.types import Dialogue, clean

CLOSE = 0.6
"""The share of the words looked for that a passage must hold, and the share of the passage that they must be."""

ENOUGH = 1.0
"""The weight of the words that a passage must share with the text: an English word, or three Chinese characters."""

_LETTER = rf"[^\W_{UNSPACED}]"
# Of scripts without spaces, a character is a token.
_TOKEN = re.compile(rf"[{UNSPACED}]|{_LETTER}+")
_ENDING = re.compile(r"(?<=[a-z]{3})(?:ing|ed|ly|es|e|s)\Z")
_AROUND = " \"'`“”‘’「」『』《》()（）[].。,，;；:：!！?？…"

# Words that say little about where something stands.
_COMMON = frozenset(
    [
        *"的了我你您们请要想是在和与及用个把给这那也都就不請們個給這與",
        *("a", "an", "and", "any", "are", "as", "at", "be", "by", "can", "could", "do", "for", "from", "i", "in", "is"),
        *("it", "its", "like", "me", "my", "need", "no", "not", "of", "on", "or", "our", "please", "should", "so"),
        *("that", "the", "their", "them", "they", "this", "to", "want", "we", "will", "with", "would", "you", "your"),
    ]
)


class Places:
    """The user's messages, read once: the turns of a dialogue (from 1), and the follow-up as the turn after the last.

    Offsets count code points of a message as it stands in the dialogue.
    """

    def __init__(self, dialogue: Dialogue, follow_up: str) -> None:
        self._messages = [*(_Message(turn.user) for turn in dialogue.turns), _Message(follow_up)]
        self.follow_up = len(self._messages)

    def find(self, text: str, turn: int | None = None) -> Span | None:
        """See `locate`."""
        looked_for = " ".join(clean(text.replace(BREAK, "")).split()).strip(_AROUND)
        # The latest first: it wins where two are as good.
        turns = [turn] if turn is not None else range(self.follow_up - 1, 0, -1)
        if not looked_for:
            return None
        exact = _exactly(looked_for)
        for number in turns:
            if match := exact.search(self._messages[number - 1].text):
                return Span(turn=number, start=match.start(), end=match.end())
        query = Counter(stem for stem, _ in _tokens(looked_for))
        nearest, found = 0.0, None
        for number in turns:
            near, start, end = self._messages[number - 1].closest(query)
            if near >= CLOSE and near > nearest:
                nearest, found = near, Span(turn=number, start=start, end=end)
        return found

    def words(self, span: Span) -> str:
        """What stands there."""
        return self._messages[span.turn - 1].text[span.start : span.end]


def locate(text: str, dialogue: Dialogue, follow_up: str, turn: int | None = None) -> Span | None:
    """Where the words of `text`, the evidence or the value of a constraint, stand in the user's messages, if they do.

    Looks in the message of `turn` alone, or, without one, in those of the dialogue but not in the follow-up. The words
    as they are come first, whatever their case and the whitespace between them; else the passage that shares most of
    its words with `text`, in any order, if it is close enough (`CLOSE`, `ENOUGH`). The latest of equally good turns
    wins. Nothing is found across languages.
    """
    return Places(dialogue, follow_up).find(text, turn)


def _exactly(text: str) -> re.Pattern[str]:
    # Not inside a word; Chinese characters have no such borders.
    before = rf"(?<!{_LETTER})" if re.match(_LETTER, text) else ""
    after = rf"(?!{_LETTER})" if re.search(rf"{_LETTER}\Z", text) else ""
    return re.compile(before + r"\s+".join(map(re.escape, text.split())) + after, re.IGNORECASE)


def _tokens(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    for match in _TOKEN.finditer(text):
        yield _ENDING.sub("", match[0].casefold()), match


def _weight(stem: str) -> float:
    if stem in _COMMON:
        return 0.2
    return 0.4 if len(stem) == 1 and re.match(rf"[{UNSPACED}]", stem) else 1.0


@dataclass
class _Message:
    text: str

    @cached_property
    def _read(self) -> tuple[list[tuple[str, re.Match[str]]], dict[str, list[int]], list[float]]:
        """The tokens, their positions by stem, and the weight before each."""
        tokens = list(_tokens(self.text))
        positions: dict[str, list[int]] = {}
        for position, (stem, _) in enumerate(tokens):
            positions.setdefault(stem, []).append(position)
        weights = {stem: _weight(stem) for stem in positions}
        return tokens, positions, [0.0, *accumulate(weights[stem] for stem, _ in tokens)]

    def closest(self, query: Counter[str]) -> tuple[float, int, int]:
        """The passage nearest to the words of `query`: how near, from 0 to 1, and its offsets.

        Nearness is the weight of the shared words over that of the query or of the passage, whichever is larger. Takes
        time in proportion to how often words of the query occur.
        """
        tokens, positions, before = self._read
        hits = sorted(position for stem in query for position in positions.get(stem, ()))
        weights = {stem: _weight(stem) for stem in query}
        whole, length = sum(weights[stem] * count for stem, count in query.items()), query.total()
        best = (0.0, 0, 0)
        for room in (length, length * 3 // 2, length * 2):
            inside: Counter[str] = Counter()
            shared, first = 0.0, 0
            for last in hits:
                stem = tokens[last][0]
                inside[stem] += 1
                shared += weights[stem] if inside[stem] <= query[stem] else 0.0
                while last - hits[first] >= room:
                    left = tokens[hits[first]][0]
                    shared -= weights[left] if inside[left] <= query[left] else 0.0
                    inside[left] -= 1
                    first += 1
                score = shared / max(whole, before[last + 1] - before[hits[first]])
                if shared >= ENOUGH and score > best[0]:
                    best = (score, tokens[hits[first]][1].start(), tokens[last][1].end())
        return best
