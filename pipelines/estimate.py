"""What a run will use, cost and take, estimated from the ledger of a sample of its dialogues. Nothing is run here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from rich.console import Console
from rich.text import Text
from scipy.stats import t

from pipelines.baselines.common import ONCE_STAGES
from pipelines.report.tables import new_table, section
from synuc.progress import duration

CONFIDENCE = 0.95
COUNTED = ("prompt_tokens", "cached_tokens", "completion_tokens", "cost")
ROWS = {
    "calls": "calls",
    "prompt_tokens": "prompt tokens",
    "cached_tokens": "  of them cached",
    "completion_tokens": "answer tokens",
    "cost": "cost",
}

Call = Mapping[str, Any]
"""A row of the usage ledger."""


@dataclass(frozen=True)
class EngineUse:
    """An engine of a run: its model, the roles it plays, and the calls that all workers together have it work on.

    `starts`: it starts inside the run, so that its first calls wait for that.
    """

    model: str
    roles: frozenset[str]
    slots: int
    starts: bool


@dataclass(frozen=True)
class Interval:
    """A mean and the half width of its 95% confidence interval; nothing here can be below zero."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        return max(0.0, self.mean - self.half)

    @property
    def high(self) -> float:
        return self.mean + self.half

    def times(self, factor: float) -> Interval:
        """That of a sum over `factor` dialogues, from that of one."""
        return Interval(self.mean * factor, self.half * factor)

    def plus(self, amount: float) -> Interval:
        """With an amount on top that has no spread."""
        return Interval(self.mean + amount, self.half)


@dataclass(frozen=True)
class Use:
    """What one dialogue uses, and what all workers together use `once`, however many dialogues there are."""

    each: Interval
    once: float

    def all(self, dialogues: int) -> Interval:
        return self.each.times(dialogues).plus(self.once)


@dataclass(frozen=True)
class Estimate:
    """`used`: per model, what is used, by the names of `ROWS`; `together` over all engines.

    `seconds` of the whole run from its first call to its last, `slots` full at most.
    """

    sampled: int
    total: int
    workers: int
    used: Mapping[str, Mapping[str, Use]]
    together: Mapping[str, Use]
    seconds: Interval

    @property
    def priced(self) -> bool:
        return self.together["cost"].all(self.total).mean > 0


def estimate(
    calls: Sequence[Call], seeds: Sequence[str], total: int, engines: Sequence[EngineUse], workers: int
) -> Estimate:
    """From the calls of the dialogues `seeds`, drawn at random of `total`. What `ONCE_STAGES` make for all dialogues is
    made once by each of the run's `workers`.

    Raises:
        ValueError: there are fewer than two seeds, which have no spread.
    """
    if len(seeds) < 2:
        raise ValueError("an interval needs two dialogues at least")
    by_engine = [[call for call in calls if call["role"] in engine.roles] for engine in engines]
    times = [_seconds(own, seeds, total, engine, workers) for own, engine in zip(by_engine, engines, strict=True)]
    return Estimate(
        sampled=len(seeds),
        total=total,
        workers=workers,
        used={
            _name(engine, engines): _used(own, seeds, workers) for own, engine in zip(by_engine, engines, strict=True)
        },
        together=_used(calls, seeds, workers),
        # They work side by side, and the slowest is the last to end.
        seconds=max(times, key=lambda seconds: seconds.mean),
    )


def _name(engine: EngineUse, engines: Sequence[EngineUse]) -> str:
    alone = sum(other.model == engine.model for other in engines) == 1
    return engine.model if alone else f"{engine.model} ({', '.join(sorted(engine.roles))})"


def _used(calls: Sequence[Call], seeds: Sequence[str], workers: int) -> dict[str, Use]:
    counted = {"calls": _use([(call, 1) for call in calls], seeds, workers)}
    for name in COUNTED:
        counted[name] = _use([(call, call[name]) for call in calls], seeds, workers)
    return counted


def _use(amounts: Sequence[tuple[Call, float]], seeds: Sequence[str], workers: int) -> Use:
    """From what each call used. Of what is made once, the dialogue that came first has the calls, on every worker."""
    makers: defaultdict[str, set[str]] = defaultdict(set)
    for call, _ in amounts:
        makers[call["key"]].add(call["seed_id"])
    sums: defaultdict[str, float] = defaultdict(float)
    once = 0.0
    for call, amount in amounts:
        if call["stage"] in ONCE_STAGES:
            once += amount / len(makers[call["key"]])
        else:
            sums[call["seed_id"]] += amount
    return Use(interval([sums[seed] for seed in seeds]), once * workers)


def interval(values: Sequence[float]) -> Interval:
    """Student's 95% confidence interval of the mean of at least two values."""
    n = len(values)
    return Interval(fmean(values), float(t.ppf((1 + CONFIDENCE) / 2, n - 1)) * stdev(values) / sqrt(n))


def _seconds(calls: Sequence[Call], seeds: Sequence[str], total: int, engine: EngineUse, workers: int) -> Interval:
    """How long the engine works on the calls of `total` dialogues.

    By Little's law that is the seconds of all calls over the calls in flight: as many as there are slots; more where
    the sample itself had more waiting; fewer where there are too few dialogues to fill them.
    """
    if not calls:
        return Interval(0.0, 0.0)
    ends = [call["started"] + call["seconds"] for call in calls]
    # Nothing is answered before an engine has started.
    begun = min(ends) if engine.starts else min(call["started"] for call in calls)
    spent = [end - max(call["started"], begun) for call, end in zip(calls, ends, strict=True)]
    if not any(spent):
        return Interval(0.0, 0.0)
    in_flight = sum(spent) / (max(ends) - begun)
    reached = min(max(engine.slots, in_flight), in_flight * total / len(seeds))
    use = _use(list(zip(calls, spent, strict=True)), seeds, workers)
    return use.all(total).times(1 / reached)


def print_estimate(data: Estimate, console: Console) -> None:
    """The estimate as tables, and what it rests on."""
    for model, used in data.used.items():
        _print_used(model, used, data, console)
    if len(data.used) > 1:
        _print_used("All engines", data.together, data, console)
    seconds = data.seconds
    lines = [
        f"Time: about {duration(seconds.mean)} ({duration(seconds.low)} to {duration(seconds.high)}) from the first "
        "call to the last.",
        f"This rests on {data.sampled:,} dialogues, drawn at random from the {data.total:,} that pass the filters, "
        "which were really synthesised and thrown away; they are paid for, but not in the run's ledger.",
        "The intervals (95%, Student's t) are about the chance of that draw, and nothing else. What isn't in them: the "
        "memory of so few dialogues is nearly empty, so that prompts that quote it get longer, and its updates more "
        "frequent; dialogues that have to be asked again.",
        "The time supposes that the slots of the engine stay full, and that a call takes as long then as it took here; "
        "an engine that the sample didn't fill may be slower.",
    ]
    if once := data.together["calls"].once:
        lines.insert(
            1,
            f"All dialogues share {once:,.0f} calls, which each of the {data.workers} workers makes once: they are in "
            "the sums, and not in what a dialogue uses.",
        )
    if not data.priced:
        lines.insert(0, "No engine has a price, so there are tokens only; set engine.price.prompt and so on.")
    for line in lines:
        console.print(Text(line))


def _print_used(title: str, used: Mapping[str, Use], data: Estimate, console: Console) -> None:
    table = new_table("", "a dialogue", "from", "to", f"all {data.total:,}", "from", "to")
    for name, label in ROWS.items():
        if name == "cost" and not data.priced:
            continue
        one = used[name]
        show = _money if name == "cost" else _count
        shown = (one.each, one.all(data.total))
        cells = [value for each in shown for value in (each.mean, each.low, each.high)]
        table.add_row(label, *map(show, cells))
    section(console, title, table)


def _count(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _money(value: float) -> str:
    return f"{value:,.2f}" if value >= 10 else f"{value:.4g}"
