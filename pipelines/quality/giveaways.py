"""Whether a follow-up alone gives its label away: then a detector could learn the look of messages, not conflicts."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import log1p
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from pipelines.quality.rows import Row
from pipelines.quality.text import is_han, words
from synuc.types import Label

FOLDS = 5
LEAST = 30
"""Samples that a label must have; of fewer nothing can be said."""

RESAMPLES = 1000
TELLING = 8
"""N-grams shown per label."""

SEEN = 5
"""Follow-ups that such an n-gram must be in."""

MARKS = "?!.,:;-\"'()\n…"
Counts = NDArray[np.integer[Any]]


def giveaways(rows: Sequence[Row]) -> dict[str, Any]:
    """How well models predict the label from the follow-up alone, per language.

    Of a language: `labels`, the number of samples of each label, and `left_out`, those of labels with fewer than
    `LEAST` samples or from fewer than `FOLDS` dialogues. With fewer than two labels left, `computed` is False and `why`
    says so. Else `words` (a bag of words and word pairs) and `style` (length and punctuation) are the figures of a
    logistic regression: macro F1 and accuracy, each with its 95% interval; `chance`, guessing labels as often as they
    occur, and `majority`, always the most frequent one, stand beside them; `telling` lists n-grams per label.

    Predictions come from cross-validation in which no dialogue is in two folds; intervals from 1,000 bootstrap samples
    of the dialogues.
    """
    languages = sorted({row.language for row in rows})
    return {language: _of_language([row for row in rows if row.language == language]) for language in languages}


def _of_language(rows: Sequence[Row]) -> dict[str, Any]:
    counts = Counter(row.label for row in rows)
    dialogues = {label: len({row.seed_id for row in rows if row.label is label}) for label in counts}
    labels = [label for label in Label if counts[label] >= LEAST and dialogues[label] >= FOLDS]
    figures: dict[str, Any] = {
        "labels": {label.value: counts[label] for label in labels},
        "left_out": {label.value: counts[label] for label in Label if counts[label] and label not in labels},
        "computed": len(labels) > 1,
    }
    if len(labels) < 2:
        return {**figures, "why": f"needs two labels with {LEAST} samples from {FOLDS} dialogues each"}
    # In an order of their own, so that folds and figures don't depend on that of the rows.
    used = sorted((row for row in rows if row.label in labels), key=lambda row: row.id)
    texts = [row.follow_up for row in used]
    gold = np.array([labels.index(row.label) for row in used])
    groups = np.unique([row.seed_id for row in used], return_inverse=True)[1]
    bag = _bag()
    return {
        **figures,
        "words": _figures(bag, texts, gold, groups),
        "style": _figures(_style(), texts, gold, groups),
        "chance": {"f1": 1 / len(labels), "accuracy": float(np.square(np.bincount(gold) / len(gold)).sum())},
        "majority": _majority(gold),
        "telling": _telling(bag.fit(texts, gold), texts, gold, labels),
    }


def terms(text: str) -> list[str]:
    """The words of a text and its pairs of neighbouring words, `^` standing before the first one."""
    single = ["^", *words(text)]
    return single + [f"{a}{b}" if is_han(a) and is_han(b) else f"{a} {b}" for a, b in pairwise(single)]


def style(texts: Sequence[str]) -> NDArray[np.float64]:
    """Length, capitals, digits and punctuation of each text, and no word of it; full-width marks count as others."""
    return np.array([_style_of(unicodedata.normalize("NFKC", text)) for text in texts])


def _style_of(text: str) -> list[float]:
    text = text.replace("。", ".").replace("、", ",")
    marks = Counter(text)
    size = max(len(text), 1)
    said = words(text)
    return [
        log1p(len(text)),
        log1p(len(said)),
        sum(map(len, said)) / max(len(said), 1),
        sum(map(str.isupper, text)) / size,
        sum(map(str.isdigit, text)) / size,
        float(text[:1].isupper()),
        float(text.rstrip()[-1:] in (".", "?", "!")),
        *(log1p(marks[mark]) for mark in MARKS),
    ]


def _regression() -> LogisticRegression:
    return LogisticRegression(class_weight="balanced", max_iter=1000)


def _bag() -> Pipeline:
    return make_pipeline(TfidfVectorizer(analyzer=terms, sublinear_tf=True, min_df=2), _regression())


def _style() -> Pipeline:
    return make_pipeline(FunctionTransformer(style), StandardScaler(), _regression())


def _figures(model: Pipeline, texts: Sequence[str], gold: Counts, groups: Counts) -> dict[str, Any]:
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0)
    predicted = cross_val_predict(model, texts, gold, groups=groups, cv=folds)
    labels = int(gold.max()) + 1
    confusion = np.zeros((int(groups.max()) + 1, labels, labels), np.int64)
    np.add.at(confusion, (groups, gold, predicted), 1)
    random = np.random.default_rng(0)
    drawn = [
        scores(confusion[random.integers(len(confusion), size=len(confusion))].sum(axis=0)) for _ in range(RESAMPLES)
    ]
    figures: dict[str, Any] = scores(confusion.sum(axis=0))
    for name in list(figures):
        low, high = np.quantile([one[name] for one in drawn], (0.025, 0.975)).tolist()
        figures[f"{name}_interval"] = [low, high]
    return figures


def scores(confusion: Counts) -> dict[str, float]:
    """Macro F1 and accuracy from counts by gold label (rows) and predicted label (columns)."""
    right = np.diagonal(confusion)
    named = confusion.sum(axis=0) + confusion.sum(axis=1)
    return {"f1": float((2 * right / np.maximum(named, 1)).mean()), "accuracy": float(right.sum() / confusion.sum())}


def _majority(gold: Counts) -> dict[str, float]:
    counts = np.bincount(gold)
    confusion = np.zeros((len(counts), len(counts)), np.int64)
    confusion[:, counts.argmax()] = counts
    return scores(confusion)


def _telling(
    fitted: Pipeline, texts: Sequence[str], gold: Counts, labels: Sequence[Label]
) -> dict[str, list[dict[str, Any]]]:
    """Per label the n-grams of greatest weight, with the share of its follow-ups that have it, and of all others."""
    vectorizer, regression = fitted[0], fitted[-1]
    weights = regression.coef_ if len(labels) > 2 else np.vstack([-regression.coef_, regression.coef_])
    names = vectorizer.get_feature_names_out()
    there = vectorizer.transform(texts) > 0
    frequent = np.flatnonzero(_sums(there) >= SEEN)
    shown = {}
    for number, label in enumerate(labels):
        best = frequent[np.argsort(-weights[number][frequent], kind="stable")[:TELLING]]
        own, other = there[gold == number][:, best], there[gold != number][:, best]
        shares = zip(*((_sums(part) / part.shape[0]).tolist() for part in (own, other)), strict=True)
        shown[label.value] = [
            {"ngram": str(names[at]), "share": mine, "elsewhere": others}
            for at, (mine, others) in zip(best, shares, strict=True)
        ]
    return shown


def _sums(matrix: Any) -> NDArray[np.float64]:
    """The sums of the columns of a sparse matrix."""
    return np.asarray(matrix.sum(axis=0), np.float64).ravel()
