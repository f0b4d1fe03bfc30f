"""Folders of finished evaluations, written file by file, whose figures are those of the protocols themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import yaml

from eval.conflictprobe.summary import measure
from eval.coninstruct.detect import Detect
from eval.coninstruct.priority import Priority
from eval.coninstruct.resolve import Resolve
from eval.folder import EvalFolder
from eval.pairwise import Human, Pairwise
from eval.protocol import Item, Result
from eval.rationale import RationaleCoverage
from eval.response import Response
from eval.uc import Classification
from eval.verifier import VerifierQuality
from synuc.formatting import Retention

ATTACK = "<script>alert('x')</script> & <b>bold</b> | `code` ```` fence"
LONG = "A long answer about the itinerary. " * 30
SUBSETS = ("WildChat-UC", "LMSYS-UC", "ShareGPT-UC")


class Figuring(Protocol):
    def figures(self, items: Sequence[Item], results: Sequence[Result]) -> dict[str, Any]: ...


def bench_item(n: int, label: str) -> dict[str, Any]:
    constraint = {"type": "implicit", "dimension": "audience", "value": "儿童也能参加", "evidence": "孩子", "turn": 1}
    explicit = {**constraint, "type": "explicit"}
    rationale = {
        "IC": {"historical": [constraint], "new": [explicit], "text": "A late show isn't for children."},
        "ER": {"historical": [explicit], "new": [explicit], "text": "It says so."},
    }
    return {
        "id": f"item-{n:02d}",
        "subset": SUBSETS[n % 3],
        "language": "zh" if n % 2 else "en",
        "history": {
            "turns": [
                {"user": "请帮我安排一次适合孩子的周末旅行。", "assistant": LONG},
                {"user": ATTACK, "assistant": "Of course."},
            ],
            "system": "",
        },
        "follow_up": f"Also add a late-night jazz show. ({n})",
        "label": label,
        "rationale": rationale.get(label),
        "speaking": "participants" if label == "IC" else None,
        "task": "planning",
    }


ITEMS = [bench_item(n, label) for n, label in enumerate(["ND", "ER", "IC", "IC"] * 6)]
CONFLICTS = [item for item in ITEMS if item["label"] == "IC"]


def write(
    path: Path,
    protocol: str,
    items: Sequence[Mapping[str, Any]],
    results: Sequence[Result],
    metrics: Mapping[str, Any],
    seed: int = 0,
    model: str = "models/tiny-4b",
    adapter: str | None = None,
    roles: tuple[str, ...] = ("model", "judge"),
    group: str = "",
    judged: tuple[str, ...] = (),
    items_of: str = "a benchmark",
    **settings: Any,
) -> EvalFolder:
    """The folder of a finished evaluation, file by file. `items_of` stands for the digest of its items."""
    path.mkdir(parents=True)
    engine = {"kind": "vllm", "model": model, "adapter": adapter}
    judge = {"kind": "openai", "model": "a-judge", "base_url": "http://localhost"}
    engines = {role: judge if role == "judge" else engine for role in roles}
    method = {"protocol": protocol, "engines": engines, "seed": seed, "items": items_of, "prompts": "4fe1", **settings}
    command = ["synuc", "eval", protocol, "--model", model, "--run", f"runs/{path.name}", "--set", "seed: 1"]
    call = {"started": 1.8e9, "seconds": 2.5, "prompt_tokens": 1200, "cached_tokens": 800, "completion_tokens": 90}
    (path / "method.json").write_text(json.dumps({"fingerprint": f"{path.name}", "method": method}))
    run = {"command": command, "settings": {"seed": seed, "group": group}, "engines": engines, "judged": list(judged)}
    (path / "config.yaml").write_text(yaml.safe_dump(run))
    (path / "metrics.json").write_text(json.dumps(metrics))
    rows = {
        "items": items,
        "results": [result.model_dump() for result in results],
        "calls": [{**call, "item": item["id"], "error": "", "cost": 0.01} for item in items],
    }
    for name, table in rows.items():
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table))
    return EvalFolder.existing(path)


def evaluated(
    path: Path, evaluation: Figuring, name: str, items: Sequence[Item], values: Sequence[Any], **more: Any
) -> EvalFolder:
    """A folder with results of these values, a failure for each None, and the evaluation's own figures."""
    results = [
        Result(id=item["id"], value=value) if value is not None else Result(id=item["id"], kind="engine", reason="gone")
        for item, value in zip(items, values, strict=True)
    ]
    figures = json.loads(json.dumps(evaluation.figures(items, results)))
    return write(path, name, items, results, figures, **more)


@lru_cache
def classified(wrong: tuple[int, ...], probabilities: bool) -> tuple[list[Result], dict[str, Any]]:
    """Results and figures of a classification."""
    results = []
    for n, item in enumerate(ITEMS):
        predicted = item["label"] if n not in wrong else "IC" if item["label"] == "ND" else "ND"
        kind = "unparseable" if n == 5 else ""
        shares = {label: 0.8 if label == predicted else 0.1 for label in ("ND", "ER", "IC")} if probabilities else None
        value = {"predicted": None if kind else predicted, "kind": kind, "answer": ATTACK + LONG}
        more = {"probabilities": shares, "prompt_tokens": 1100 + 100 * n}
        results.append(Result(id=item["id"], value={**value, **more}))
    results[9] = Result(id=ITEMS[9]["id"], kind="engine", reason="gone")
    evaluation = Classification(Retention.PARTIAL, "trained", "label" if probabilities else "reasoned", 0.01, 512)
    return results, evaluation.figures(ITEMS, results)


def uc(path: Path, wrong: tuple[int, ...] = (), probabilities: bool = False, **more: Any) -> EvalFolder:
    """A classification whose items `wrong` are taken for normal dialogue (or a normal dialogue for a conflict).

    The answer to item 5 is unreadable, the call about item 9 failed.
    """
    results, figures = classified(wrong, probabilities)
    return write(path, "uc", ITEMS, results, figures, **more)


def response(path: Path, recognised: int, **more: Any) -> EvalFolder:
    values = [
        {"answer": "Sure.", "cut": n == 1, "evidence": "", "reason": "", "recognised": n < recognised}
        for n in range(len(CONFLICTS))
    ]
    return evaluated(path, Response(), "response", CONFLICTS, values, **more)


def verifier_offers(label: str) -> list[dict[str, Any]]:
    return [
        {"offered": offered, "accepted": offered == label, "kind": "", "reason": "", "judged": label, "calls": 3}
        | ({"stage": "", "confidence": 90} if offered == label else {"stage": "confidence", "confidence": 40})
        for offered in ("ND", "ER", "IC")
    ]


def conflictprobe(path: Path) -> EvalFolder:
    verdicts = [("present", "named"), ("present", "unnamed"), ("absent", "named"), ("absent", "unnamed")]
    judged = [
        {"surfaced": content, "conflict_named": named, "recall": "present", "human_label": ""}
        for content, named in verdicts
    ]
    counts = {"scenarios": 1, "failed": 0, "failures": {}, "judge_failures": {"unparseable": 2}, "with_thoughts": 3}
    metrics = {"overall": measure(judged), "per_scenario": {"family_01": measure(judged)}, **counts}
    items = [{"id": "family_01"}]
    return write(path, "conflictprobe", items, [], metrics, reasoning="drop", history="ori")


def instructions() -> list[dict[str, Any]]:
    return [
        {"id": "a/free", "case": "a", "kinds": [], "instruction": "Write.", "part": "free", "position": "free"}
        | {"constraints": [{"kind": "content", "text": "c"}], "originals": [{"kind": "CC", "text": "o"}]},
        {
            "id": "a/CC",
            "case": "a",
            "kinds": ["CC"],
            "instruction": "Write.",
            "part": "single",
            "position": "new_later",
        },
        {"id": "a/multi", "case": "a", "kinds": ["CC", "KK"], "instruction": "Write.", "part": "multi", "position": ""},
    ]


def coninstruct(root: Path) -> list[EvalFolder]:
    items = instructions()
    answer = {"response": "r", "cut": False}
    verdicts = [{"verdict": verdict} for verdict in ("no_conflict", "conflict", "conflict")]
    shown = [{**answer, "behaviour": name} for name in ("unacknowledged", "clarification", "clarification")]
    free = {**answer, "judgments": {"c": {"verdict": "YES"}, "o": {"verdict": "NO"}}}
    followed = [free, {**answer, "satisfied": "new"}]
    return [
        evaluated(root / "detect", Detect(), "coninstruct-detect", items, verdicts),
        evaluated(root / "resolve", Resolve(), "coninstruct-resolve", items, shown),
        evaluated(root / "priority", Priority(), "coninstruct-priority", items[:2], followed),
    ]


def judged(root: Path) -> list[EvalFolder]:
    """Runs that judges or verifiers have decided."""
    degrees = ("complete", "partial", "none")
    coverage = [{"coverage": degrees[n % 3], "predicted": ("IC", "ND")[n % 2]} for n in range(len(CONFLICTS))]
    verdicts = ("win", "win", "tie", "loss")
    compared = [
        {
            "verdict": verdicts[n % 4],
            "inconsistent": n % 4 == 2,
            "judgments": [{"shown_first": "first", "verdict": "win"}],
        }
        for n in range(len(CONFLICTS))
    ]
    human = tuple(
        Human.model_validate({"id": item["id"], "evaluators": ("win", "tie"), "final": verdicts[n % 4]})
        for n, item in enumerate(item for item in CONFLICTS if item["subset"] == "WildChat-UC")
    )
    offers = [{"offers": verifier_offers(item["label"])} for item in ITEMS]
    judge: dict[str, Any] = {"roles": ("judge",)}
    pair = ("base", "tuned-1")
    return [
        evaluated(root / "coverage", RationaleCoverage(), "rationale", CONFLICTS, coverage, **judge, judged=("base",)),
        evaluated(root / "pairs", Pairwise(human=human), "pairwise", CONFLICTS, compared, **judge, judged=pair),
        evaluated(root / "verify", VerifierQuality(), "verifier", ITEMS, offers, roles=("generator", "verifier")),
    ]


def with_states(folder: EvalFolder, silhouette: float = 0.25) -> EvalFolder:
    """The folder with decision states: a cloud for each label, the further apart the larger the silhouette."""
    centre = {label: 40 * silhouette * at for at, label in enumerate(("ND", "ER", "IC"))}
    points = [
        {"id": item["id"], "label": item["label"], "x": centre[item["label"]] + n % 5, "y": n % 7}
        for n, item in enumerate(ITEMS)
    ]
    states = {
        "points": points,
        "silhouette": silhouette,
        "projection": "umap",
        "n": 24,
        "excluded": {"failed": 1, "no_judgment": 0},
    }
    folder.write_metrics({**folder.metrics, "states": states})
    return folder


def everything(root: Path) -> list[EvalFolder]:
    return [
        with_states(uc(root / "base", wrong=(0, 2, 3, 6, 10, 14), model="models/base-4b"), -0.02),
        with_states(uc(root / "tuned-1", wrong=(2,), seed=1, adapter="runs/sft-1", group="SFT, five seeds"), 0.31),
        uc(root / "tuned-2", wrong=(2, 3, 7), seed=2, adapter="runs/sft-2", group="SFT, five seeds"),
        uc(root / "quick", wrong=(2, 11, 15, 19), probabilities=True, model="models/base-9b"),
        response(root / "answers-base", 1, model="models/base-4b"),
        response(root / "answers-9b", 4, model="models/base-9b"),
        response(root / "answers-tuned", 9, adapter="runs/sft-1"),
        *judged(root),
        *coninstruct(root),
        conflictprobe(root / "probe"),
    ]
