"""Estimates from ledgers whose true figures are known, and the drawing of the sample."""

from __future__ import annotations

import io
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pipelines.estimate import EngineUse, Estimate, estimate, interval, print_estimate
from pipelines.readers import Refused
from pipelines.seeds import Taken
from pipelines.trial import draw, engine_uses
from synuc.config import RunConfig
from tests.scripted import a_seed

CHEAP = EngineUse("cheap", frozenset({"generator", "curator"}), 8, False)
STRONG = EngineUse("strong", frozenset({"verifier"}), 2, False)


def call(
    seed: str, role: str = "generator", started: float = 0.0, seconds: float = 1.0, **fields: Any
) -> dict[str, Any]:
    used = {
        "key": seed,
        "stage": "match",
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "completion_tokens": 10,
        "cost": 0.0,
    } | fields
    return {"seed_id": seed, "role": role, "started": started, "seconds": seconds, **used}


def printed(data: Estimate) -> str:
    out = io.StringIO()
    print_estimate(data, Console(width=200, file=out))
    return out.getvalue()


def test_the_interval_is_students() -> None:
    # t of 2 degrees of freedom at 97.5% is 4.3027; the standard deviation of 1, 2, 3 is 1.
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.302653 / 3**0.5)
    assert found.low == 0.0
    assert found.high == pytest.approx(2.0 + 4.302653 / 3**0.5)


def test_nineteen_of_twenty_intervals_hold_the_mean() -> None:
    rng = random.Random(0)
    held = sum(
        found.low <= 50 <= found.high for found in (interval([rng.gauss(50, 10) for _ in range(8)]) for _ in range(400))
    )
    # Binomial(400, 0.95): 380, and four standard deviations.
    assert 363 <= held <= 397


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=20))
def test_whatever_was_used_the_interval_holds_its_mean_and_nothing_below_zero(values: list[int]) -> None:
    found = interval(values).times(1000)
    assert 0 <= found.low <= found.mean <= found.high
    assert found.mean == pytest.approx(1000 * sum(values) / len(values))


def test_sums_are_per_dialogue_and_per_engine() -> None:
    calls = [call("a", cost=0.5), call("a"), call("b"), call("a", "verifier", prompt_tokens=1000, cost=2.0)]
    data = estimate(calls, ["a", "b"], 1000, [CHEAP, STRONG], 1)
    assert data.used["cheap"]["calls"].each.mean == 1.5
    assert data.used["cheap"]["prompt_tokens"].each.mean == 150
    assert data.used["cheap"]["cached_tokens"].each.mean == 60
    assert data.used["cheap"]["completion_tokens"].all(1000).mean == 15_000
    # A dialogue without calls of an engine counts as none, it isn't left out.
    assert data.used["strong"]["calls"].each.mean == 0.5
    assert data.used["strong"]["prompt_tokens"].each.mean == 500
    assert data.together["cost"].each.mean == pytest.approx(1.25)
    assert data.priced


def once(seed: str, key: str, **fields: Any) -> dict[str, Any]:
    return call(seed, key=f"designer/{key}", stage="designer_logic", **fields)


def test_what_all_dialogues_share_is_used_once_by_each_worker() -> None:
    # Two workers made the sample: both made `x`, at 400 and 200 tokens, and one of them `y`, in two attempts.
    shared = [
        once("a", "x", prompt_tokens=400, cost=2.0),
        once("b", "x", prompt_tokens=200, cost=2.0),
        once("a", "y", prompt_tokens=50),
        once("a", "y", prompt_tokens=50),
    ]
    own = [call(seed) for seed in "ab"]
    data = estimate([*own, *shared], ["a", "b"], 1000, [CHEAP, STRONG], 3)
    used = data.used["cheap"]
    assert (used["calls"].each.mean, used["calls"].each.half, used["calls"].once) == (1, 0, 3 * (1 + 2))
    assert used["prompt_tokens"].all(1000).mean == 1000 * 100 + 3 * (300 + 100)
    assert data.together["cost"].all(1000).mean == pytest.approx(3 * 2.0)
    assert data.used["strong"]["calls"].all(1000).mean == 0
    assert data.priced
    said = printed(data)
    assert "share 9 calls, which each of the 3 workers makes once" in said
    assert "1,009" in said
    assert "share" not in printed(estimate(own, ["a", "b"], 1000, [CHEAP], 3))


def test_the_time_of_what_is_shared_does_not_grow_with_the_dialogues() -> None:
    calls = [once("a", "x", seconds=60.0), *(call(seed, started=60.0) for seed in "ab")]
    # 62 seconds of calls in 61.
    data = estimate(calls, ["a", "b"], 8000, [CHEAP], 2)
    assert data.seconds.mean == pytest.approx((8000 * 1 + 2 * 60) / 8)


def test_one_dialogue_has_no_spread() -> None:
    with pytest.raises(ValueError, match="two dialogues"):
        estimate([call("a")], ["a"], 10, [CHEAP], 1)


def test_time_is_calls_over_slots_where_the_sample_left_slots_empty() -> None:
    # Two dialogues of four calls of a second, one after the other: two in flight.
    calls = [call(seed, started=float(n)) for seed in "ab" for n in range(4)]
    data = estimate(calls, ["a", "b"], 800, [CHEAP], 1)
    assert data.seconds.mean == pytest.approx(800 * 4 / 8)
    assert data.seconds.half == 0


def test_time_of_a_full_engine_is_the_samples_pace() -> None:
    # Ten dialogues at once on two slots: each call waits, five seconds on average are four too many.
    calls = [call(str(n), "verifier", seconds=n // 2 + 1.0) for n in range(10)]
    data = estimate(calls, [str(n) for n in range(10)], 1000, [STRONG], 1)
    assert data.seconds.mean == pytest.approx(1000 / 2)


def test_few_dialogues_cannot_fill_the_slots() -> None:
    calls = [call(seed, started=float(n)) for seed in "ab" for n in range(4)]
    assert estimate(calls, ["a", "b"], 2, [CHEAP], 1).seconds.mean == pytest.approx(4)


def test_the_slowest_engine_says_how_long_it_takes() -> None:
    calls = [call(seed, role) for seed in "ab" for role in ("generator", "verifier")]
    data = estimate(calls, ["a", "b"], 800, [CHEAP, STRONG], 1)
    assert data.seconds.mean == pytest.approx(800 / 2)


def test_the_start_of_an_engine_is_no_time_of_its_calls() -> None:
    starting = EngineUse("own", frozenset({"generator"}), 2, True)
    # A minute to start, then calls of a second, two at once.
    calls = [call(seed, seconds=61.0) for seed in "ab"] + [
        call(seed, started=61.0 + n) for seed in "ab" for n in (0, 1)
    ]
    assert estimate(calls, ["a", "b"], 100, [starting], 1).seconds.mean == pytest.approx(100 * 2 / 2)


def test_an_engine_that_was_never_asked_takes_no_time() -> None:
    data = estimate([call("a"), call("b")], ["a", "b"], 80, [CHEAP, STRONG], 1)
    assert data.used["strong"]["calls"].each.high == 0
    assert data.seconds.mean == pytest.approx(80 / 8)


def test_prints_money_only_where_there_are_prices() -> None:
    calls = [call("a"), call("b", prompt_tokens=300)]
    said = printed(estimate(calls, ["a", "b"], 5000, [CHEAP], 1))
    assert "No engine has a price" in said
    assert "cost" not in said
    assert "1,000,000" in said
    assert "2 dialogues, drawn at random from the 5,000" in said
    said = printed(estimate([call("a", cost=0.01), call("b", cost=0.01)], ["a", "b"], 5000, [CHEAP, STRONG], 1))
    assert "No engine has a price" not in said
    assert "50.00" in said
    assert "All engines" in said


def test_engines_of_one_model_are_told_apart_by_their_roles() -> None:
    other = EngineUse("cheap", frozenset({"verifier"}), 2, False)
    data = estimate([call("a"), call("b")], ["a", "b"], 10, [CHEAP, other], 1)
    assert list(data.used) == ["cheap (curator, generator)", "cheap (verifier)"]


def test_slots_of_engines_in_the_workers_add_up_and_an_endpoints_dont() -> None:
    config = RunConfig.model_validate(
        {
            "engine": {"kind": "vllm", "model": "m", "max_in_flight": 16},
            "roles": {"verifier": {"kind": "openai", "model": "v", "max_in_flight": 64}},
        }
    )
    own, endpoint = engine_uses(config, workers=3)
    assert own == EngineUse("m", frozenset({"generator", "curator"}), 48, True)
    assert endpoint == EngineUse("v", frozenset({"verifier"}), 64, False)


def test_every_dialogue_is_drawn_as_often_and_all_are_counted() -> None:
    taken = [Taken(a_seed(str(n)), trimmed=False) for n in range(10)]
    items: list[Taken | Refused] = [*taken[:5], Refused("f", "0", "too_long", "", ""), *taken[5:]]
    drawn: Counter[str] = Counter()
    for seed in range(2000):
        sample, total = draw(items, 3, seed)
        assert total == 10
        assert len({each.id for each in sample}) == 3
        drawn.update(each.id for each in sample)
    assert set(drawn) == {str(n) for n in range(10)}
    # Binomial(2000, 0.3): 600, and five standard deviations.
    assert all(497 <= n <= 703 for n in drawn.values())
    assert draw(items, 3, 7) == draw(items, 3, 7)


def test_a_sample_larger_than_what_there_is_is_all_of_it() -> None:
    taken = [Taken(a_seed(str(n)), trimmed=False) for n in range(3)]
    sample, total = draw(taken, 20, 0)
    assert ([seed.id for seed in sample], total) == (["0", "1", "2"], 3)
