"""Decision states (paper, section 7.6): what a detector holds right before it writes the label, after its reasoning.

The reasoning is that of a finished `synuc eval uc` run. One forward pass over a prompt and its answer up to the label
gives the last layer's hidden state, after the final norm, at the last position: the vector from which the label's first
token is predicted. The silhouette is of the gold labels in the full space, with Euclidean distances (the paper names
none; so scikit-learn's default).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.metrics import silhouette_score

from actors.vllm_adapters import read_adapter
from eval.bench import BenchItem
from eval.folder import EvalFolder
from synuc.formatting import JUDGMENT, Retention, messages_for
from synuc.problem import Problem
from synuc.reading import EMPHASIS

FILE = "states.npz"
NEIGHBOURS = 15
"""UMAP's own default: points that it takes for one neighbourhood."""
FEWEST = 3
"""Fewer states have no picture."""

Vectors = NDArray[np.float32]
Messages = list[dict[str, str]]


class StatesError(Problem):
    """A run whose decision states can't be had; the message says what to do."""


class Encoder(Protocol):
    """Turns chat messages into token ids by a model's chat template, as `training.data.Encoder` does."""

    def prompt(self, messages: Messages) -> str: ...

    def ids(self, text: str) -> list[int]: ...


Load = Callable[[str, str | None], tuple[torch.nn.Module, Encoder]]
"""Loads a model (folder, hub name or `embedded`), perhaps with the LoRA adapter in a folder, and its encoder."""


@dataclass(frozen=True)
class States:
    """The decision states of a run: `vectors` [n, hidden] of the items `ids` with the gold `labels`.

    `excluded` counts the items without one: `failed` have no answer, `no_judgment` none with the heading of the label.
    """

    ids: tuple[str, ...]
    labels: tuple[str, ...]
    vectors: Vectors
    excluded: dict[str, int]

    def save(self, path: Path, source: str) -> None:
        """Write them whole. `source` says what they were made from."""
        scratch = path.with_name(f".{path.name}")
        with scratch.open("wb") as file:
            np.savez_compressed(
                file,
                source=source,
                ids=np.array(self.ids, dtype=str),
                labels=np.array(self.labels, dtype=str),
                vectors=self.vectors,
                excluded=json.dumps(self.excluded),
            )
        scratch.replace(path)

    @classmethod
    def saved(cls, path: Path, source: str) -> Self | None:
        """What `save` wrote, if it was made from the same."""
        if not path.exists():
            return None
        with np.load(path) as data:
            if data["source"].item() != source:
                return None
            return cls(
                tuple(data["ids"].tolist()),
                tuple(data["labels"].tolist()),
                data["vectors"],
                json.loads(data["excluded"].item()),
            )


@dataclass(frozen=True)
class _Asked:
    """An item with a state: its prompt, and the answer up to its label."""

    id: str
    label: str
    messages: Messages
    begun: str


def states(run: EvalFolder, load: Load, batch: int = 8) -> States:
    """The decision states of a finished `uc` run, in the order of its items; kept in RUN/states.npz.

    The model is loaded only if they aren't there yet, or are those of other answers.

    Args:
        load: loads the run's model.
        batch: sequences that go through the model at once.

    Raises:
        StatesError: the run's model is an endpoint, wasn't asked to reason, or its adapter has changed since.
        Problem: the model or its adapter can't be loaded.
    """
    engine = run.method["engines"]["model"]
    if engine["kind"] != "vllm":
        raise StatesError(
            f"{run.path} asked an endpoint ({engine['model']}), which shows no hidden states; take a run whose "
            "--model is a folder or a name of the Hugging Face hub"
        )
    if run.method["mode"] != "reasoned":
        raise StatesError(f"{run.path} asked for labels without reasoning; take a run in mode `reasoned`")
    asked, excluded = _asked(run)
    source = _digest([engine, [vars(item) for item in asked], excluded])
    if (kept := States.saved(run.path / FILE, source)) is not None:
        return kept
    vectors: Vectors = np.empty((0, 0), np.float32)
    if asked:
        adapter = engine["adapter"]
        if adapter and read_adapter(Path(adapter), "engine.adapter").version != engine["adapter_weights"]:
            raise StatesError(
                f"{adapter} holds another adapter than the one that gave the answers of {run.path}; "
                "evaluate it in another run folder"
            )
        model, encoder = load(engine["model"], adapter)
        sequences = [encoder.ids(encoder.prompt(a.messages)) + encoder.ids(a.begun) for a in asked]
        vectors = _vectors(model, sequences, batch)
    made = States(tuple(a.id for a in asked), tuple(a.label for a in asked), vectors, excluded)
    made.save(run.path / FILE, source)
    return made


def before_label(answer: str) -> str | None:
    """The answer up to where its label begins, or None if that can't be said.

    As `synuc.reading.read_label` reads it: one line after all thoughts is only the heading, plain or emphasised. What
    stands there instead of a label doesn't matter. An emphasis that opens before the label is a part of what comes
    before it; spaces aren't, because tokenizers put them into the word that follows.
    """
    thoughts, end, spoken = answer.rpartition("</think>")
    lines = spoken.splitlines(keepends=True)
    headings = [n for n, line in enumerate(lines) if " ".join(line.split()).strip(EMPHASIS) == JUDGMENT]
    if "<think>" in spoken or len(headings) != 1 or not lines[headings[0]].endswith("\n"):
        return None
    rest = "".join(lines[headings[0] + 1 :])
    label = rest.lstrip(EMPHASIS.replace(" ", "") + "\n")
    return thoughts + end + spoken[: len(spoken) - len(label)]


def figures(states: States, seed: int = 0) -> dict[str, Any]:
    """What is drawn and reported of the states, as plain JSON.

    `points` (`id`, `label`, `x`, `y` of every state), `projection` (`umap`; `pca` where UMAP isn't installed; None and
    no points for fewer than three states), `silhouette` (-1 to 1, or None: it needs two labels, and more states than
    labels), `n`, `excluded` (a count for each reason).
    """
    coordinates, projection = _projected(states.vectors, seed)
    rows = zip(states.ids, states.labels, coordinates.tolist(), strict=False)
    return {
        "points": [{"id": id, "label": label, "x": x, "y": y} for id, label, (x, y) in rows],
        "silhouette": silhouette(states),
        "projection": projection,
        "n": len(states.ids),
        "excluded": states.excluded,
    }


def silhouette(states: States) -> float | None:
    """The mean silhouette coefficient of the gold labels in the full space, or None where it isn't defined."""
    if not 2 <= len(set(states.labels)) < len(states.labels):
        return None
    return float(silhouette_score(states.vectors, states.labels))


def _projected(vectors: Vectors, seed: int) -> tuple[Vectors, str | None]:
    """Two coordinates for each vector, and the method that gave them."""
    n = len(vectors)
    if n < FEWEST:
        return np.empty((0, 2), np.float32), None
    if find_spec("umap") is None:
        return PCA(2, random_state=seed).fit_transform(vectors), "pca"
    # The spectral start needs more points than a neighbourhood has.
    init = "spectral" if n > NEIGHBOURS else "random"
    umap = import_module("umap").UMAP(n_neighbors=min(NEIGHBOURS, n - 1), init=init, random_state=seed)
    return umap.fit_transform(vectors), "umap"


def _asked(run: EvalFolder) -> tuple[list[_Asked], dict[str, int]]:
    method = run.method
    answers = {result.id: result.value["answer"] for result in run.results() if result.value is not None}
    asked = []
    excluded = Counter({"failed": 0, "no_judgment": 0})
    for row in run.items():
        item = BenchItem.model_validate(row)
        if item.id not in answers:
            excluded["failed"] += 1
        elif (begun := before_label(answers[item.id])) is None:
            excluded["no_judgment"] += 1
        else:
            prompt = messages_for(item.history, item.follow_up, Retention(method["retention"]), method["prompt"])
            asked.append(_Asked(item.id, item.label.value, prompt, begun))
    return asked, dict(excluded)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _vectors(model: Any, sequences: Sequence[list[int]], batch: int) -> Vectors:
    """The last hidden state of every sequence of token ids."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    decoder = model.to(device).eval().get_decoder()
    order = sorted(range(len(sequences)), key=lambda place: -len(sequences[place]))
    found: dict[int, Vectors] = {}
    for start in range(0, len(order), batch):
        places = order[start : start + batch]
        found |= zip(places, _last_states(decoder, [sequences[place] for place in places], device), strict=True)
    return np.stack([found[place] for place in range(len(sequences))])


def _last_states(decoder: Any, sequences: Sequence[list[int]], device: str) -> Vectors:
    # Padded on the right, where no position of a sequence looks; so every position has its own number, too.
    lengths = torch.tensor([len(sequence) for sequence in sequences], device=device)
    width = int(lengths.max())
    ids = torch.tensor([sequence + [0] * (width - len(sequence)) for sequence in sequences], device=device)
    mask = (torch.arange(width, device=device) < lengths[:, None]).long()
    with torch.inference_mode():
        hidden = decoder(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    last: Vectors = hidden[torch.arange(len(sequences), device=device), lengths - 1].float().cpu().numpy()
    return last
