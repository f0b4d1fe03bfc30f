"""Looks through chat dialogues for those that a benchmark can be made from (paper, Appendix B.1).

Rule filter → semantic filter → task category → suitability; the best of each language and category become candidates.
The rule filter is that of seeds: whoever reads them gives them to `draw`, with what was counted meanwhile to `mine`.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.console import Console

from eval.config import EvalRun, Settings
from eval.driver import evaluate
from eval.folder import EvalFolder
from eval.mining_choice import Candidate, best, steps, write_candidates
from eval.mining_judging import MAX_TOKENS, SCORES, judge
from eval.protocol import Item, Result
from synuc.config import Cluster, EngineConfig, Seeds
from synuc.effects import Program
from synuc.layers import Section
from synuc.problem import Problem
from synuc.replies import CATEGORIES
from synuc.types import Seed


class MiningConfig(Section):
    """The settings of `synuc bench mine`; `--set` names these keys."""

    seeds: Seeds = Field(Seeds(), description="the rule filter; the paths are those of --seeds")
    engine: EngineConfig = Field(description="a strong model; configs/bench.yaml names one")
    per_language: int | None = Field(
        None, ge=1, description="dialogues of each language that are drawn and asked about; none: all"
    )
    least_suitability: int = Field(5, ge=SCORES[0], le=SCORES[-1], description="of a candidate (paper: 5)")
    keep: int | None = Field(
        None, ge=1, description="candidates of each language and task category, best first; none: all, as in the paper"
    )
    parse_attempts: int = Field(3, ge=1, description="times a call is asked before its answer counts as unparseable")
    seed: int = Field(0, description="decides which dialogues are drawn")
    cluster: Cluster = Cluster()

    def drawing(self) -> dict[str, Any]:
        """What decides which dialogues of a file are asked about."""
        return {"seeds": self.seeds.model_dump(mode="json", exclude={"paths"}), "per_language": self.per_language}


@dataclass(frozen=True)
class Drawn:
    """Dialogues to ask about, and by language how many passed the rules and weren't drawn."""

    seeds: tuple[Seed, ...]
    not_drawn: dict[str, int]


def draw(seeds: Iterable[Seed], per_language: int | None, seed: int) -> Drawn:
    """At most `per_language` dialogues of each language, at random, but always the same whatever their order."""
    heaps: dict[str, list[tuple[str, str, Seed]]] = {}
    not_drawn: Counter[str] = Counter()
    for one in seeds:
        heap = heaps.setdefault(one.language, [])
        # No two have the same id, so that no seeds are compared.
        entry = (hashlib.sha256(f"{seed}/{one.id}".encode()).hexdigest(), one.id, one)
        if per_language is None or len(heap) < per_language:
            heapq.heappush(heap, entry)
        else:
            heapq.heappushpop(heap, entry)
            not_drawn[one.language] += 1
    drawn = sorted(entry for heap in heaps.values() for entry in heap)
    return Drawn(tuple(one for _, _, one in drawn), dict(sorted(not_drawn.items())))


@dataclass(frozen=True)
class Mining:
    """Judges dialogues with the driver of evaluations. Its items are `Seed`s as JSON, of two turns or more.

    `drawn_by`: the settings by which they were read and drawn. `read`: what was counted meanwhile; it stands in the
    figures as it is. `least_suitability` and `keep` choose among what has been judged, so they may change later.
    """

    drawn_by: Mapping[str, Any]
    read: Mapping[str, Any]
    least_suitability: int
    keep: int | None

    @property
    def name(self) -> str:
        return "bench-mine"

    def snapshot(self) -> dict[str, Any]:
        return {**self.drawn_by, "max_tokens": MAX_TOKENS}

    def program(self, item: Item) -> Program[dict[str, Any]]:
        """Kept: an `eval.mining_judging.Judged` as JSON."""
        judged = yield from judge(Seed.model_validate(dict(item)))
        return judged.model_dump(mode="json")

    def candidates(self, items: Sequence[Item], results: Sequence[Result]) -> list[Candidate]:
        return best(items, results, self.least_suitability, self.keep)

    def figures(self, items: Sequence[Item], results: Sequence[Result]) -> dict[str, Any]:
        """`read`, what chose, and the counts of each step (`eval.mining_choice.steps`): of all, and by language."""
        kept = self.candidates(items, results)
        by_language: dict[str, list[Item]] = {}
        for item in items:
            by_language.setdefault(item["language"], []).append(item)
        return {
            "read": dict(self.read),
            "least_suitability": self.least_suitability,
            "keep": self.keep,
            "overall": steps(items, results, kept, self.least_suitability),
            "languages": {
                language: steps(by_language[language], results, kept, self.least_suitability)
                for language in sorted(by_language)
            },
        }


def mine(
    config: MiningConfig, drawn: Drawn, read: Mapping[str, Any], command: Sequence[str], path: Path, console: Console
) -> dict[str, Any]:
    """Judge the dialogues, or go on with it, in the folder `path`, and write its candidates.jsonl; the figures.

    `read`: the counts of the rule filter, as `pipelines.seeds.SeedStats` has them.

    Raises:
        Problem: no dialogue passed the rules, or none became a candidate; and as `eval.driver.evaluate` does.
    """
    if not drawn.seeds:
        raise Problem(
            f"none of the {read['read']} dialogues passed the rules ({_counted(read['refused'])}): change seeds.* with "
            "--set, or give other --seeds; `synuc seeds stats` shows examples of what is refused"
        )
    items = [one.model_dump(mode="json") for one in drawn.seeds]
    counts = {**read, "not_drawn": drawn.not_drawn}
    mining = Mining(config.drawing(), counts, config.least_suitability, config.keep)
    settings = Settings(parse_attempts=config.parse_attempts, seed=config.seed, cluster=config.cluster)
    run = EvalRun(command=tuple(command), settings=settings, engines={"judge": config.engine})
    figures = evaluate(mining, items, run, path, console)
    kept = mining.candidates(items, EvalFolder(path).results())
    write_candidates(kept, path / "candidates.jsonl")
    for line in told(figures):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if not kept:
        raise Problem(
            f"none of the {len(items)} dialogues is a candidate; {path / 'results.jsonl'} says why. Take more or other "
            "--seeds with another --run, or give the same command with a lower --set least_suitability"
        )
    said = f"{path / 'candidates.jsonl'} holds {len(kept)} candidates, metrics.json all counts."
    console.print(said, soft_wrap=True, highlight=False, markup=False)
    return figures


def told(figures: Mapping[str, Any]) -> list[str]:
    """The counts of each step, a line for the reading and one for each language."""
    read = figures["read"]
    lines = [
        f"read {read['read']}: refused by the rules {_all(read['refused'])}, "
        f"not drawn {_all(read['not_drawn'])}, asked about {figures['overall']['asked']}"
    ]
    for language, step in figures["languages"].items():
        others = {name: n for name, n in step["categories"].items() if name not in CATEGORIES}
        lines.append(
            f"{language}: asked {step['asked']}, failed {_all(step['failed'])}, rejected {_all(step['rejected'])}, "
            f"other tasks {_all(others)}, scored {_all(step['scores'])}, kept {_all(step['kept'])}"
        )
    if figures["overall"]["failed"]:
        lines.append("The same command tries those again that failed.")
    return lines


def _all(counts: Mapping[str, int]) -> str:
    """The sum, and in parentheses what it is made of."""
    return f"{sum(counts.values())} ({parts})" if (parts := _counted(counts)) else "0"


def _counted(counts: Mapping[str, int]) -> str:
    """Names and their numbers; empty if all are 0."""
    return ", ".join(f"{name}: {n}" for name, n in counts.items() if n)
