"""A planted give-away is found, shuffled labels give none, and too little is said to be too little."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.quality import giveaways as module
from pipelines.quality.giveaways import giveaways, scores, style, terms
from pipelines.quality.rows import Row
from synuc.types import Label
from tests.quality import a_row, innocent

LABELS = list(Label)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESAMPLES", 100)


def plain(n: int = 150, seed: int = 0) -> list[Row]:
    """Follow-ups with labels that have nothing to do with them; three of each dialogue."""
    labels = np.random.default_rng(seed).permutation([LABELS[at % 3] for at in range(n)])
    return [a_row(f"{at // 3}-{at % 3}", Label(label), innocent(at)) for at, label in enumerate(labels)]


def test_a_planted_word_is_found_and_named() -> None:
    rows = [
        a_row(row.id, row.label, f"Actually, {row.follow_up}" if row.label is Label.ER else row.follow_up)
        for row in plain()
    ]
    figures = giveaways(rows)["en"]
    assert figures["computed"]
    assert figures["labels"] == {"ND": 50, "ER": 50, "IC": 50}
    # ER is always right, the others by chance.
    assert figures["words"]["f1"] > 0.55
    assert figures["words"]["f1_interval"][0] > figures["chance"]["f1"]
    best = figures["telling"]["ER"][0]
    assert "actually" in best["ngram"]
    assert (best["share"], best["elsewhere"]) == (1, 0)
    assert not any("actually" in one["ngram"] for one in figures["telling"]["IC"])


def test_a_planted_word_is_found_in_chinese() -> None:
    rows = [
        a_row(f"{n}-x", label, f"{'改成' if label is Label.ER else '再加上'}第{n % 9}段的内容", language="zh")
        for n in range(90)
        for label in [LABELS[n % 2]]
    ]
    figures = giveaways(rows)["zh"]
    assert figures["words"]["accuracy"] == 1
    assert any("改" in one["ngram"] for one in figures["telling"]["ER"])
    assert any("加" in one["ngram"] for one in figures["telling"]["ND"])


def test_a_planted_mark_is_found_by_style_alone() -> None:
    rows = [
        a_row(row.id, row.label, row.follow_up.replace(".", "!") if row.label is Label.IC else row.follow_up)
        for row in plain()
    ]
    figures = giveaways(rows)["en"]
    assert figures["style"]["f1_interval"][0] > figures["chance"]["f1"]


def test_shuffled_labels_give_nothing_away() -> None:
    figures = giveaways(plain(300))["en"]
    for name in ("words", "style"):
        assert figures[name]["f1"] == pytest.approx(figures["chance"]["f1"], abs=0.1)
        low, high = figures[name]["f1_interval"]
        assert low < figures["chance"]["f1"] + 0.05
        assert low < figures[name]["f1"] < high


def test_a_dialogue_is_never_in_two_folds() -> None:
    # Each dialogue has its own word and its own label: to be learnt only by whoever has seen the dialogue.
    rows = [a_row(f"{n}-{k}", LABELS[n * 7 % 3], f"word{n} " * 3) for n in range(60) for k in range(3)]
    assert giveaways(rows)["en"]["words"]["accuracy"] < 0.6


def test_figures_dont_depend_on_the_order_of_rows() -> None:
    rows = plain(120)
    assert giveaways(rows) == giveaways(rows[::-1])


def test_too_few_samples_are_said_and_not_computed() -> None:
    normal = [a_row(f"{n}-ND", Label.ND, innocent(n)) for n in range(40)]
    figures = giveaways([*normal, a_row("1-IC", Label.IC), a_row("2-ER", Label.ER)])["en"]
    assert figures == {
        "labels": {"ND": 40},
        "left_out": {"ER": 1, "IC": 1},
        "computed": False,
        "why": "needs two labels with 30 samples from 5 dialogues each",
    }
    # Many samples of one dialogue are no more than one.
    assert giveaways([*normal, *(a_row(f"1-{n}", Label.IC) for n in range(40))])["en"]["left_out"] == {"IC": 40}


def test_a_label_with_too_few_is_left_out_and_counted() -> None:
    rows = [row for row in plain() if row.label is not Label.ER] + [a_row("900-ER", Label.ER)]
    figures = giveaways(rows)["en"]
    assert figures["computed"]
    assert figures["left_out"] == {"ER": 1}
    assert figures["chance"] == {"f1": 0.5, "accuracy": 0.5}
    assert set(figures["telling"]) == {"ND", "IC"}


def test_scores_and_guesses_by_hand() -> None:
    confusion = np.array([[3, 1], [2, 4]])
    f1 = (2 * 3 / (4 + 5) + 2 * 4 / (6 + 5)) / 2
    assert scores(confusion) == {"f1": pytest.approx(f1), "accuracy": pytest.approx(0.7)}
    figures = module._majority(np.array([0, 0, 0, 1]))
    assert figures == {"f1": pytest.approx((2 * 3 / 7) / 2), "accuracy": 0.75}


def test_terms_and_style() -> None:
    assert terms("No, thanks") == ["^", "no", "thanks", "^ no", "no thanks"]
    assert terms("改成A") == ["^", "改", "成", "a", "^ 改", "改成", "成 a"]
    assert np.array_equal(style(["你好？"]), style(["你好?"]))
    assert not np.array_equal(style(["Well."]), style(["Well!"]))
    assert np.isfinite(style([""])).all()
