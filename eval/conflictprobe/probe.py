"""The two probes of ConflictProbe ("How to use it"): raise the conflict at the trap, recall with the trap masked."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import StringConstraints

from eval import prompting
from eval.conflictprobe.data import Conflict, Scenario, Systems, Turn
from eval.conflictprobe.summary import COLUMNS, measure
from eval.protocol import Item, Result
from synuc.effects import Fork, Program
from synuc.reading import split_thoughts, visible
from synuc.replies import Reply
from synuc.types import CallFailed, LLMRequest, Spoken

EVIDENCE_LENGTH = 300
Evidence = Annotated[str, StringConstraints(max_length=EVIDENCE_LENGTH)]
JUDGE_TOKENS = 1200
"""Bounds a judge's answer: its evidence in Chinese takes up to three tokens a character."""

_VERDICT_LINE = re.compile(r"(present|absent)\s*\|\s*(named|unnamed)\s*(?:\|(.*))?", re.IGNORECASE)


class TrapVerdict(Reply):
    """`surfaced`: the earlier value's content is in the reply. `conflict_named`: it signals a difference."""

    evidence: Evidence
    surfaced: Literal["present", "absent"]
    conflict_named: Literal["named", "unnamed"]


class RecallVerdict(Reply):
    """`recall`: the earlier value's content is in the reply to the recall question."""

    evidence: Evidence
    recall: Literal["present", "absent"]


@dataclass(frozen=True)
class Probe:
    """Runs a scenario as one dialogue and judges the replies at its trap and recall turns.

    reasoning: `keep` leaves the model's thoughts in its earlier replies, `drop` removes them at once.
    history: `ori` keeps all exchanges, `indep` removes a trap and its recall for good once both are done.
    """

    systems: Systems
    reasoning: Literal["keep", "drop"] = "drop"
    history: Literal["ori", "indep"] = "ori"
    temperature: float = 0.0
    max_tokens: int = 2048

    @property
    def name(self) -> str:
        return "conflictprobe"

    def snapshot(self) -> dict[str, Any]:
        """All settings, the system prompts among them."""
        return {**asdict(self), "systems": self.systems.model_dump()}

    def program(self, item: Item) -> Program[dict[str, Any]]:
        """The dialogue turn by turn, then all judgments side by side. A turn that fails makes the scenario fail.

        Kept: `replies` (`turn`, `type`, `text` as the user reads it, `thoughts`, `cut`) of all turns; `conflicts`
        (`fact_key`, `source_turn`, `trap_turn`, `recall_turn`, and of the `trap` and `recall` judgments the verdict
        fields with their `evidence`, or the judge's `failure`).
        """
        scenario = Scenario.model_validate(item)
        replies = yield from self._dialogue(scenario)
        texts = {reply["turn"]: reply["text"] for reply in replies}
        conflicts = scenario.conflicts()
        judged = yield Fork(
            tuple(
                self._judgment(scenario.id, conflict, turn, texts[turn.turn])
                for conflict in conflicts
                for turn in (conflict.trap, conflict.recall)
            )
        )
        return {
            "replies": replies,
            "conflicts": [
                {
                    "fact_key": conflict.trap.fact_key,
                    "source_turn": conflict.source.turn,
                    "trap_turn": conflict.trap.turn,
                    "recall_turn": conflict.recall.turn,
                    "trap": judged[2 * at],
                    "recall": judged[2 * at + 1],
                }
                for at, conflict in enumerate(conflicts)
            ],
        }

    def figures(self, items: Sequence[Item], results: Sequence[Result]) -> dict[str, Any]:
        """The figures as `eval.conflictprobe.summary.measure` gives them, and what they don't count.

        `overall` and `per_scenario`; `scenarios`, of which `failed` (their `failures` by kind) and `unfinished` have no
        figures; `judge_failures` by kind, over traps and recalls; `empty` and `cut`: replies of all turns with nothing
        to read, and cut off at `max_tokens` (they are judged as they are); `with_thoughts`: replies that hold some.
        """
        judged = rows(items, results, "", self.reasoning, self.history)
        values = [result.value for result in results if result.value is not None]
        replies = [reply for value in values for reply in value["replies"]]
        verdicts = [conflict[at] for value in values for conflict in value["conflicts"] for at in ("trap", "recall")]
        failures = Counter(result.kind for result in results if result.value is None)
        names = dict.fromkeys(row["scenario"] for row in judged)
        return {
            "overall": measure(judged),
            "per_scenario": {name: measure([row for row in judged if row["scenario"] == name]) for name in names},
            "scenarios": len(items),
            "failed": failures.total(),
            "failures": dict(failures),
            "unfinished": len(items) - len(results),
            "judge_failures": dict(Counter(one["failure"].partition(":")[0] for one in verdicts if "failure" in one)),
            "empty": sum(not reply["text"] for reply in replies),
            "cut": sum(reply["cut"] for reply in replies),
            "with_thoughts": sum(bool(reply["thoughts"]) for reply in replies),
        }

    def _dialogue(self, scenario: Scenario) -> Program[list[dict[str, Any]]]:
        replies: list[dict[str, Any]] = []
        history: list[tuple[Turn, str]] = []
        for turn in scenario.turns:
            # Probe 2: the recall question is asked as if only its own trap had never been.
            masked = turn.linked_trap if turn.type == "recall" else None
            answer = yield self._request(scenario, turn, [said for said in history if said[0].turn != masked])
            thoughts, text = split_thoughts(answer.text)
            whole = answer.text.strip()
            if answer.thoughts:
                thoughts, whole = answer.thoughts, f"<think>\n{answer.thoughts}\n</think>\n\n{text}"
            replies.append(
                {"turn": turn.turn, "type": turn.type, "text": text, "thoughts": thoughts, "cut": answer.cut},
            )
            history.append((turn, whole if self.reasoning == "keep" else text))
            if turn.type == "recall" and self.history == "indep":
                history = [said for said in history if said[0].turn not in (turn.turn, turn.linked_trap)]
        return replies

    def _request(self, scenario: Scenario, turn: Turn, history: Iterable[tuple[Turn, str]]) -> LLMRequest:
        system = self.systems.zh if scenario.language == "zh" else self.systems.en
        messages = [{"role": "system", "content": system}]
        for past, reply in history:
            messages += [{"role": "user", "content": past.user}, {"role": "assistant", "content": reply}]
        return LLMRequest(
            stage=f"conflictprobe_{turn.type}",
            role="model",
            key=f"{scenario.id}/{turn.turn}",
            messages=(*messages, {"role": "user", "content": turn.user}),
            reply=Spoken,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
        )

    def _judgment(self, scenario: str, conflict: Conflict, turn: Turn, text: str) -> Program[dict[str, Any]]:
        trap = turn.type == "trap"
        if not text:
            return _nothing_to_read(trap)
        ours = prompting.render("conflictprobe_judge", trap=trap)
        asked = prompting.render("conflictprobe_judged", conflict=conflict, turn=turn, reply=text)
        request = LLMRequest(
            stage=f"conflictprobe_judge_{turn.type}",
            role="judge",
            key=f"{scenario}/{turn.turn}",
            messages=(
                {"role": "system", "content": self.systems.judge or ours},
                {"role": "user", "content": asked},
            ),
            reply=Spoken if self.systems.judge else TrapVerdict if trap else RecallVerdict,
            max_tokens=JUDGE_TOKENS,
        )
        try:
            answer = yield request
            verdict = read_verdict(answer.text) if isinstance(answer, Spoken) else answer
        except CallFailed as failed:
            return {"failure": str(failed)}
        if not trap and isinstance(verdict, TrapVerdict):
            verdict = RecallVerdict(evidence=verdict.evidence, recall=verdict.surfaced)
        return cast(dict[str, Any], verdict.model_dump())


def read_verdict(answer: str) -> TrapVerdict:
    """The verdict of a judge that answers in the published form: its first line is `Q1|Q2|EVIDENCE`.

    Raises:
        CallFailed: `unparseable`.
    """
    line = visible(answer).partition("\n")[0].strip()
    found = _VERDICT_LINE.fullmatch(line)
    if not found:
        raise CallFailed("unparseable", f"the judge's first line is no present|named|evidence: {line[:200]!r}")
    surfaced, named, evidence = found.groups(default="")
    return TrapVerdict.model_validate(
        {
            "evidence": evidence.strip()[:EVIDENCE_LENGTH],
            "surfaced": surfaced.lower(),
            "conflict_named": named.lower(),
        }
    )


def rows(
    items: Sequence[Item], results: Sequence[Result], model: str, reasoning: str, history: str
) -> list[dict[str, Any]]:
    """The judged conflicts of a run as rows of results/summary.csv, in the order of the items and their traps.

    Where the judge failed, its field is empty. Scenarios that failed have no rows: `figures` counts them.
    """
    values = {result.id: result.value for result in results if result.value is not None}
    return [
        {
            "model": model,
            "reasoning": reasoning,
            "history": history,
            "scenario": item["id"],
            "source_turn": conflict["source_turn"],
            "trap_turn": conflict["trap_turn"],
            "surfaced": conflict["trap"].get("surfaced", ""),
            "conflict_named": conflict["trap"].get("conflict_named", ""),
            "recall": conflict["recall"].get("recall", ""),
            "label_source": "machine_binary",
            "human_label": "",
            "human_note": "",
        }
        for item in items
        if item["id"] in values
        for conflict in values[item["id"]]["conflicts"]
    ]


def write_csv(path: Path, judged: Iterable[Mapping[str, Any]]) -> None:
    """Write `rows`, of one run or of several, as results/summary.csv."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(judged)


def _nothing_to_read(trap: bool) -> dict[str, Any]:
    verdict: Reply = (
        TrapVerdict(evidence="", surfaced="absent", conflict_named="unnamed")
        if trap
        else RecallVerdict(evidence="", recall="absent")
    )
    return verdict.model_dump()
