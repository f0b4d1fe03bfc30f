"""Answers of a tiny random detector: batches, padding, and where an answer ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipelines.export import GRPO
from tests.tiny import FAMILIES, save_family
from training import answers
from training.answers import answer, batches
from training.backbone import load_model, new_adapter, with_adapter
from training.config import Backbone, Data, Lora

LABELS = ("ND", "ER", "IC")


@pytest.fixture(scope="module", params=["llama-3.1", "qwen3.5"])
def detector(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Backbone, Path]:
    """A tiny model of a family, and an adapter that changes what it says."""
    folder = tmp_path_factory.mktemp("detector")
    backbone = save_family(FAMILIES[request.param], folder / "model")
    adapted = new_adapter(load_model(backbone), Lora())
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.1)
    adapted.save_pretrained(str(folder / "adapter"))
    return backbone, folder / "adapter"


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """Five rows of different lengths, the longest neither first nor last."""
    rows = [
        {
            "id": f"r{n}",
            "messages": [{"role": "user", "content": "Is there a conflict? " * (1 + n * 3 % 5)}],
            "label": LABELS[n % 3],
            "language": "en",
            "seed_id": f"s{n}",
            "reference": None,
        }
        for n in range(5)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=GRPO), tmp_path / "uc-data-grpo.parquet")
    return Data(path=tmp_path)


def test_batches_are_by_length_and_within_the_budget() -> None:
    lengths = [10, 50, 20, 40, 30]
    made = list(batches(lengths, max_tokens=10, budget=100))
    assert made == [[1], [3, 4], [2, 0]]
    assert all(len(batch) * (max(lengths[n] for n in batch) + 10) <= 100 for batch in made)


def test_a_prompt_over_the_budget_is_a_batch_of_its_own() -> None:
    assert list(batches([500, 5, 900], max_tokens=10, budget=100)) == [[2], [0], [1]]
    assert list(batches([], max_tokens=10, budget=100)) == []


def test_a_batch_says_what_each_prompt_alone_says(
    detector: tuple[Backbone, Path], data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    together = answer(*detector, data, 6, lambda *at: told.append(at))
    assert told == [(0, 5), (5, 5)]
    monkeypatch.setattr(answers, "TOKENS_AT_ONCE", {"cpu": 1, "cuda": 1})
    alone = answer(*detector, data, 6)
    assert together == alone
    assert [row["id"] for row in together] == [f"r{n}" for n in range(5)]
    assert [row["label"] for row in together] == [LABELS[n % 3] for n in range(5)]
    assert len({row["answer"] for row in together}) > 1


def test_the_label_is_read_from_the_answer(
    detector: tuple[Backbone, Path], data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: Iterator[str] = iter(["[Final Judgment]\nImplicit Conflict", "no label"])
    monkeypatch.setattr(answers, "_generated", lambda model, tokenizer, prompts: [next(texts) for _ in prompts])
    rows = answer(*detector, data.model_copy(update={"limit": 2}), 8)
    assert sorted(str(row["predicted"]) for row in rows) == ["IC", "None"]


@pytest.mark.parametrize(("zero", "adapter"), [(2, torch.float32), (3, torch.bfloat16)])
def test_zero_3_has_all_weights_in_one_type(detector: tuple[Backbone, Path], zero: int, adapter: torch.dtype) -> None:
    backbone, trained = detector
    half = backbone.model_copy(update={"dtype": "bfloat16"})
    for model in (new_adapter(load_model(half), Lora(), zero), with_adapter(load_model(half), trained, True, zero)):
        types = {weight.requires_grad: weight.dtype for weight in model.parameters()}
        assert types == {True: adapter, False: torch.bfloat16}
