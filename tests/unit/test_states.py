"""Decision states of tiny random detectors: the right position, whatever stands beside it in a batch."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from safetensors.torch import load_file, save_file

from actors.vllm_adapters import read_adapter
from eval import states as module
from eval.bench import BenchItem, Rationale
from eval.folder import EvalFolder
from eval.protocol import Result
from eval.states import FILE, Encoder, States, StatesError, before_label, figures, silhouette, states
from synuc.formatting import Retention, detector_messages
from synuc.reading import read_label
from synuc.types import Dialogue, Label, Turn
from tests.tiny import FAMILIES, save_family
from training import answers
from training.backbone import load_model, new_adapter
from training.config import Backbone, Lora

ANSWERS = {
    "short": "[Final Judgment]\nNormal Dialogue",
    "long": "They asked for a quiet day, and now want a night club. " * 8 + "\n\n[Final Judgment]\nno label",
    "middle": "The tone stays the same.\n\n[Final Judgment]\nExplicit Revision",
    "mute": "There is a conflict.",
}
LABELS = {"short": Label.ND, "long": Label.IC, "middle": Label.ER, "mute": Label.IC, "failed": Label.ND}


class Settings(BaseModel):
    """What the command was given; nothing is read from it."""


def a_detector(family: str, folder: Path) -> tuple[Backbone, Path]:
    """A tiny model of a family, and an adapter that changes its states."""
    backbone = save_family(FAMILIES[family], folder / "model")
    adapted = new_adapter(load_model(backbone), Lora())
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.1)
    adapted.save_pretrained(str(folder / "adapter"))
    return backbone, folder / "adapter"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Backbone, Path]:
    return a_detector("llama-3.1", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Backbone, Path]:
    """Most of its layers are linear attention."""
    return a_detector("qwen3.5", tmp_path_factory.mktemp("qwen"))


@pytest.fixture(params=["llama", "qwen"])
def detector(request: pytest.FixtureRequest) -> tuple[Backbone, Path]:
    made: tuple[Backbone, Path] = request.getfixturevalue(request.param)
    return made


def load(model: str, adapter: str | None) -> tuple[torch.nn.Module, Encoder]:
    backbone = Backbone(model=model, dtype="float32", template={"enable_thinking": False})
    return answers.detector(backbone, Path(adapter) if adapter else None)


def never(model: str, adapter: str | None) -> tuple[torch.nn.Module, Encoder]:
    raise AssertionError("the states are there already")


def item(id: str) -> BenchItem:
    turn = Turn(user=f"Plan a day for {id} people.", assistant="Here it is. " * (40 if id == "middle" else 1))
    return BenchItem(
        id=id,
        subset="WildChat-UC",
        language="en",
        history=Dialogue(turns=(turn,)),
        follow_up="And the evening?",
        label=LABELS[id],
        rationale=None if LABELS[id] is Label.ND else Rationale(text="They clash."),
    )


def a_run(path: Path, model: str, adapter: Path | None = None, kind: str = "vllm", **method: str) -> EvalFolder:
    """A finished `uc` run of five items: three with a state, one without a heading, one failed."""
    folder = EvalFolder(path)
    path.mkdir()
    identity: dict[str, Any] = {"kind": kind, "model": model, "adapter": adapter and str(adapter)}
    if adapter:
        identity["adapter_weights"] = read_adapter(adapter, "adapter").version
    asked = {"prompt": "trained", "mode": "reasoned", **method}
    snapshot = {"protocol": "uc", "engines": {"model": identity}, "retention": "partial", **asked}
    folder.begin(Settings(), snapshot)
    folder.write_items([item(id).model_dump(mode="json") for id in LABELS])
    for id, answer in ANSWERS.items():
        folder.append("results", Result(id=id, value={"answer": answer, "predicted": None}).model_dump())
    folder.append("results", Result(id="failed", kind="context_length", reason="too long").model_dump())
    folder.write_metrics({})
    return folder


def test_a_state_is_the_one_that_predicts_the_label(detector: tuple[Backbone, Path], tmp_path: Path) -> None:
    backbone, _ = detector
    made = states(a_run(tmp_path / "run", backbone.model), load)
    assert (made.ids, made.labels) == (("short", "long", "middle"), ("ND", "IC", "ER"))
    assert made.vectors.shape == (3, 64)
    assert made.vectors.dtype == np.float32
    assert made.excluded == {"failed": 1, "no_judgment": 1}
    model: Any
    model, encoder = load(backbone.model, None)
    for n, id in enumerate(made.ids):
        shown = item(id)
        prompt = encoder.ids(encoder.prompt(detector_messages(shown.history, shown.follow_up, Retention.PARTIAL)))
        whole = torch.tensor([prompt + encoder.ids(ANSWERS[id])])
        # The label's own tokens follow the state in a pass over the whole answer, and don't change it.
        at = len(prompt) + len(encoder.ids(ANSWERS[id].rpartition("\n")[0] + "\n")) - 1
        with torch.inference_mode():
            out = model(whole, output_hidden_states=True)
        assert np.allclose(made.vectors[n], out.hidden_states[-1][0, at], atol=1e-4)
        head = model.get_output_embeddings()(torch.tensor(made.vectors[n]))
        assert torch.allclose(head, out.logits[0, at], atol=1e-3)
    assert not np.allclose(made.vectors[0], made.vectors[1], atol=1e-2)


def test_a_batch_gives_what_each_alone_gives(detector: tuple[Backbone, Path], tmp_path: Path) -> None:
    backbone, adapter = detector
    together = states(a_run(tmp_path / "together", backbone.model, adapter), load, batch=3)
    alone = states(a_run(tmp_path / "alone", backbone.model, adapter), load, batch=1)
    assert together.ids == alone.ids
    assert np.allclose(together.vectors, alone.vectors, atol=1e-4)


def test_an_adapter_that_was_trained_again_is_refused(llama: tuple[Backbone, Path], tmp_path: Path) -> None:
    backbone, adapter = llama
    copied = shutil.copytree(adapter, tmp_path / "adapter")
    run = a_run(tmp_path / "run", backbone.model, copied)
    weights = load_file(copied / "adapter_model.safetensors")
    save_file({name: 2 * weight for name, weight in weights.items()}, copied / "adapter_model.safetensors")
    with pytest.raises(StatesError, match="holds another adapter than the one that gave the answers"):
        states(run, never)


def test_an_adapter_changes_the_states(llama: tuple[Backbone, Path], tmp_path: Path) -> None:
    backbone, adapter = llama
    before = states(a_run(tmp_path / "before", backbone.model), load)
    after = states(a_run(tmp_path / "after", backbone.model, adapter), load)
    assert np.abs(before.vectors - after.vectors).max(axis=1).min() > 1e-2


def test_what_is_there_is_taken_until_an_answer_changes(llama: tuple[Backbone, Path], tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", llama[0].model)
    made = states(run, load)
    assert (run.path / FILE).is_file()
    again = states(run, never)
    assert np.array_equal(again.vectors, made.vectors)
    assert replace(again, vectors=made.vectors) == made
    run.append("results", Result(id="failed", value={"answer": ANSWERS["middle"]}).model_dump())
    with pytest.raises(AssertionError, match="there already"):
        states(run, never)
    assert states(run, load).excluded == {"failed": 0, "no_judgment": 1}


def test_no_answer_with_a_heading_needs_no_model(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", "m")
    for id in LABELS:
        run.append("results", Result(id=id, value={"answer": "I can't tell."}).model_dump())
    drawn = figures(states(run, never))
    assert drawn == {
        "points": [],
        "silhouette": None,
        "projection": None,
        "n": 0,
        "excluded": {"failed": 0, "no_judgment": 5},
    }


def test_an_endpoint_shows_no_states(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", "gpt", kind="openai")
    with pytest.raises(StatesError, match=r"run asked an endpoint \(gpt\).* take a run whose --model is a folder"):
        states(run, never)


def test_a_label_without_reasoning_has_no_decision_state(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", "m", mode="label")
    with pytest.raises(StatesError, match="without reasoning; take a run in mode `reasoned`"):
        states(run, never)


def test_an_untrained_model_was_asked_in_another_form(llama: tuple[Backbone, Path], tmp_path: Path) -> None:
    trained = states(a_run(tmp_path / "trained", llama[0].model), load)
    untrained = states(a_run(tmp_path / "untrained", llama[0].model, prompt="zero_shot"), load)
    assert np.abs(trained.vectors - untrained.vectors).max() > 1e-2


@pytest.mark.parametrize(
    ("answer", "before"),
    [
        ("Why.\n\n[Final Judgment]\nImplicit Conflict", "Why.\n\n[Final Judgment]\n"),
        ("Why.\n[Final  Judgment] \n\n  Implicit Conflict\n", "Why.\n[Final  Judgment] \n\n"),
        ("## [Final Judgment]\n**Implicit Conflict**", "## [Final Judgment]\n**"),
        ("[Final Judgment]\nI am not sure", "[Final Judgment]\n"),
        ("[Final Judgment]\n", "[Final Judgment]\n"),
        (
            "<think>[Final Judgment]\n</think>\n[Final Judgment]\na",
            "<think>[Final Judgment]\n</think>\n[Final Judgment]\n",
        ),
        ("<think>[Final Judgment]\nNormal Dialogue", None),
        ("[Final Judgment]\nImplicit Conflict\n[Final Judgment]\nImplicit Conflict", None),
        ("The [Final Judgment]\nImplicit Conflict", None),
        ("Why.\n[Final Judgment]", None),
        ("", None),
    ],
)
def test_where_the_label_begins(answer: str, before: str | None) -> None:
    assert before_label(answer) == before


PIECES = ["[Final Judgment]", "\n", " ", "**", "<think>", "</think>", "Implicit Conflict", "word"]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_every_label_that_can_be_read_has_a_place(answer: str) -> None:
    before = before_label(answer)
    assert before is None or answer.startswith(before)
    if label := read_label(answer):
        assert before is not None
        rest = " ".join(answer[len(before) :].split())
        assert rest.startswith(label.words)
        assert read_label(before) is None


def made_of(vectors: Iterable[Iterable[float]], labels: str) -> States:
    rows = np.array([*vectors], dtype=np.float32)
    return States(tuple(f"i{n}" for n in range(len(rows))), tuple(labels.split()), rows, {"failed": 0})


def test_the_silhouette_by_hand() -> None:
    # Two pairs, 1 apart inside and 4 or more across: a = 1; b = (4 + 5) / 2 outside, (4 + 3) / 2 inside.
    line = made_of([[0, 0, 0], [1, 0, 0], [4, 0, 0], [5, 0, 0]], "ND ND IC IC")
    assert silhouette(line) == pytest.approx((2 * (1 - 1 / 4.5) + 2 * (1 - 1 / 3.5)) / 4)
    assert silhouette(made_of([[0, 0], [1, 0], [2, 0]], "IC IC IC")) is None
    assert silhouette(made_of([[0, 0], [1, 0], [2, 0]], "ND ER IC")) is None


def test_the_picture_without_umap_keeps_the_distances_in_a_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    corners = made_of([[1, 0, 0, 7], [1, 3, 0, 7], [1, 0, 4, 7]], "ND ER IC")
    drawn = figures(corners)
    assert drawn["projection"] == "pca"
    assert [(point["id"], point["label"]) for point in drawn["points"]] == [("i0", "ND"), ("i1", "ER"), ("i2", "IC")]
    at = np.array([(point["x"], point["y"]) for point in drawn["points"]])
    sides = [np.linalg.norm(at[a] - at[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert sides == pytest.approx([3, 4, 5], abs=1e-4)
    assert figures(made_of([[1, 2], [3, 4]], "ND IC"))["points"] == []


@pytest.mark.parametrize(("n", "neighbours", "init"), [(4, 3, "random"), (40, 15, "spectral")])
def test_umap_draws_where_it_is_installed(n: int, neighbours: int, init: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def umap(**settings: Any) -> SimpleNamespace:
        asked.update(settings)
        return SimpleNamespace(fit_transform=lambda vectors: vectors[:, :2])

    monkeypatch.setattr(module, "find_spec", lambda name: object())
    monkeypatch.setattr(module, "import_module", lambda name: SimpleNamespace(UMAP=umap))
    drawn = figures(made_of([[k, -k, 0] for k in range(n)], " ".join(["ND"] * n)), seed=7)
    assert asked == {"n_neighbors": neighbours, "init": init, "random_state": 7}
    assert drawn["projection"] == "umap"
    assert drawn["points"][2] == {"id": "i2", "label": "ND", "x": 2.0, "y": -2.0}
