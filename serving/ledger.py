"""What the service remembers of conversations: the constraints that the user still wants."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.config import LedgerConfig
from serving.detection import Detection, Found, Verdict
from synuc.folding import folded
from synuc.problem import Problem
from synuc.types import Frozen

CONSTRAINTS = 64
"""Constraints, and open conflicts, that a conversation holds; the latest stay."""

ID_CHARS = 200
"""The longest name of a conversation."""


class BadId(Problem):
    """A name that no conversation can have; the message says what to do."""


class LedgerDown(Exception):
    """The ledger doesn't answer, or not in time."""


class OpenConflict(Frozen):
    """Two constraints that can't hold together, as long as the user hasn't said which counts. `turn`: the user turn
    that brought the conflict, from 1.
    """

    historical: Found
    new: Found
    turn: int


class Conversation(Frozen):
    """What is believed of a conversation. `turns`: user turns so far, the last follow-up included; `constraints`: those
    that the user still wants; `updated` in Unix seconds; `verdicts`: how many of each there were.
    """

    id: str
    turns: int
    constraints: tuple[Found, ...] = ()
    open_conflicts: tuple[OpenConflict, ...] = ()
    updated: float
    verdicts: dict[Verdict, int]


@dataclass(frozen=True)
class _Kept:
    """A conversation, with the verdict on its latest message."""

    conversation: Conversation
    message: str
    detection: Detection


class Ledger:
    """Conversations by owner and id, in memory. `clock` gives Unix seconds.

    An owner is a hash of the key that asks, empty where anybody may. Owners don't see each other's conversations; the
    same id is another conversation for each of them.

    A detection lists the constraints that its history leaves valid. These replace the active ones, and then
    - ND adds the follow-up's own constraints;
    - ER does as well, and takes out the constraint that it revises;
    - IC adds none of them: it leaves the historical side active and opens a conflict.
    A conflict stays open until a later detection revises one of its sides (ER) or doesn't list one of them any more. A
    detection that lists nothing changes neither constraints nor conflicts: an undetermined one, one of mode `fast`, and
    an answer without lists. It still counts as a message.

    A constraint is the same as an earlier one if type and dimension are, and its value or the place of its words.

    Bounds: `config.conversations`, of which the one that has been without a message for longest is forgotten first, and
    every one after `config.expire_s`; `CONSTRAINTS` constraints and conflicts of each; ids of `ID_CHARS` characters.
    """

    def __init__(self, config: LedgerConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        # The longest without a message first.
        self._conversations: OrderedDict[tuple[str, str], _Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._conversations)

    def update(self, owner: str, id: str, message: str, detection: Detection, turns: int) -> Conversation:
        """Note the detection of a `message` (`DetectRequest.message`). `turns` counts the user's, this one included.

        Raises:
            BadId: the id is empty or too long.
        """
        if not 0 < len(id) <= ID_CHARS:
            raise BadId(f"conversation_id: {len(id)} characters; give 1 to {ID_CHARS}, or leave it out")
        now = self._clock()
        self._expire(now)
        kept = self._conversations.get((owner, id))
        before = kept.conversation if kept else Conversation(id=id, turns=0, updated=now, verdicts={})
        active, conflicts = before.constraints, before.open_conflicts
        if detection.constraints or detection.new_constraints:
            active, conflicts = _active(detection), _conflicts(conflicts, detection, turns)
        after = Conversation(
            id=id,
            turns=turns,
            constraints=active[-CONSTRAINTS:],
            open_conflicts=conflicts[-CONSTRAINTS:],
            updated=now,
            verdicts={**before.verdicts, detection.label: before.verdicts.get(detection.label, 0) + 1},
        )
        self._conversations[owner, id] = _Kept(after, message, detection)
        self._conversations.move_to_end((owner, id))
        while len(self._conversations) > self._config.conversations:
            self._conversations.popitem(last=False)
        return after

    def get(self, owner: str, id: str) -> Conversation | None:
        """The conversation, or None if it isn't remembered. Looking doesn't count as a message."""
        self._expire(self._clock())
        kept = self._conversations.get((owner, id))
        return kept.conversation if kept else None

    def verdict(self, owner: str, id: str, message: str) -> Detection | None:
        """The verdict on a message that is the latest of the conversation, else None."""
        self._expire(self._clock())
        kept = self._conversations.get((owner, id))
        return kept.detection if kept and kept.message == message else None

    def _expire(self, now: float) -> None:
        while self._conversations:
            oldest = next(iter(self._conversations.values()))
            if now - oldest.conversation.updated < self._config.expire_s:
                return
            self._conversations.popitem(last=False)


def _active(detection: Detection) -> tuple[Found, ...]:
    listed = list(detection.constraints)
    if detection.label == "IC":
        return tuple(listed)
    if detection.label == "ER" and detection.historical is not None:
        listed = [one for one in listed if one != detection.historical]
    return (*listed, *(one for one in detection.new_constraints if not _among(one, listed)))


def _conflicts(conflicts: tuple[OpenConflict, ...], detection: Detection, turn: int) -> tuple[OpenConflict, ...]:
    revised = detection.historical if detection.label == "ER" else None
    still = [one for one in conflicts if _open(one, detection.constraints, revised)]
    if detection.label == "IC" and detection.historical is not None and detection.new is not None:
        opened = OpenConflict(historical=detection.historical, new=detection.new, turn=turn)
        still = [one for one in still if not (_same(one.historical, opened.historical) and _same(one.new, opened.new))]
        still.append(opened)
    return tuple(still)


def _open(conflict: OpenConflict, listed: Sequence[Found], revised: Found | None) -> bool:
    sides = (conflict.historical, conflict.new)
    return all(_among(side, listed) for side in sides) and not (revised and _among(revised, sides))


def _among(one: Found, others: Sequence[Found]) -> bool:
    return any(_same(one, other) for other in others)


def _same(one: Found, other: Found) -> bool:
    if (one.type, one.dimension) != (other.type, other.dimension):
        return False
    if folded(one.value) == folded(other.value):
        return True
    a, b = one.where, other.where
    return a is not None and b is not None and a.turn == b.turn and a.start < b.end and b.start < a.end
