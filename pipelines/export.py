"""Data sets from a run: UC-Data-SFT and UC-Data-GRPO (JSONL and Parquet), all intermediates, and a dataset card.

Only accepted samples are exported, in the order of their ids, so that a run always gives the same bytes. Samples pass
one by one: they go into a scratch file first, and then out of it in order; only ids and positions are held in memory.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq
import yaml

from pipelines.run_folder import SAMPLES, RunFolder
from synuc.formatting import HEAD, TAIL, Retention, grpo_example, sft_example
from synuc.problem import Problem
from synuc.sample import Outcome, Sample
from synuc.types import Label

ROWS_PER_GROUP = 512
FILES = (
    "uc-data-sft.jsonl",
    "uc-data-sft.parquet",
    "uc-data-grpo.jsonl",
    "uc-data-grpo.parquet",
    "uc-data.jsonl",
    "README.md",
)

EXAMPLE = [
    ("id", pa.string()),
    ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
    ("label", pa.string()),
    ("language", pa.string()),
    ("seed_id", pa.string()),
]
CONSTRAINT = pa.struct([(name, pa.string()) for name in ("type", "dimension", "value", "evidence")])
REFERENCE = pa.struct(
    [
        ("label", pa.string()),
        ("relation", pa.string()),
        ("historical_constraint", CONSTRAINT),
        ("new_constraint", CONSTRAINT),
    ]
)
SFT = pa.schema(EXAMPLE)
GRPO = pa.schema([*EXAMPLE, ("reference", REFERENCE)])


class ExportError(Problem):
    """A run with nothing to export; the message says where to look."""


class Totals:
    """What a card says about the exported samples."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[Label, str]] = Counter()
        self.turns: Counter[Label] = Counter()
        self.max_turns: Counter[Label] = Counter()

    def add(self, label: Label, sample: Sample) -> None:
        turns = len(sample.dialogue.turns)
        self.counts[label, sample.language] += 1
        self.turns[label] += turns
        self.max_turns[label] = max(self.max_turns[label], turns)

    @property
    def languages(self) -> list[str]:
        return sorted({language for _, language in self.counts})

    def of(self, label: Label | None, language: str | None = None) -> int:
        """The number of samples of a label and a language; None: of all."""
        return sum(n for (la, lg), n in self.counts.items() if label in (None, la) and language in (None, lg))


def export(folder: RunFolder, retention: Retention) -> list[str]:
    """Write RUN/export anew, each file whole or not at all; the lines say what is there and what is missing.

    A run that is not finished can be exported: the lines and the card then say how many dialogues are open.

    Raises:
        ExportError: the run has no accepted sample.
    """
    facts = folder.ingest() or {"taken": 0, "sources": {}}
    unfinished = facts["taken"] - len(folder.finished())
    target = folder.path / "export"
    try:
        with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.path) as name:
            scratch = Path(name)
            order, repeated = _collect(folder, scratch / "records")
            if not order:
                raise ExportError(
                    f"{folder.path} has no accepted sample to export; see why with: synuc report {folder.path}"
                )
            totals = _write(scratch, order, retention, _provenance(folder))
            text = card(folder.path.name, folder.method, facts, totals, retention, unfinished)
            (scratch / "README.md").write_text(text, encoding="utf-8")
            target.mkdir(exist_ok=True)
            for file in FILES:
                _publish(scratch / file, target / file)
    except OSError as error:
        raise ExportError(f"can't write to {target}: {error.strerror or error}; make room and export again") from None
    per_label = ", ".join(f"{totals.of(label)} {label.value}" for label in Label)
    lines = [f"{len(order)} accepted samples ({per_label}), assistant turns {retention.value}:"]
    lines += [f"  {target / file}" for file in FILES]
    if unfinished:
        lines.append(f"{unfinished} of {facts['taken']} dialogues aren't finished: go on with synuc synthesize.")
    if repeated:
        lines.append(f"{repeated} samples have the id of another and were left out: see synuc report {folder.path}")
    return lines


def _publish(file: Path, target: Path) -> None:
    with file.open("rb") as written:
        os.fsync(written.fileno())
    file.replace(target)


def _collect(folder: RunFolder, records: Path) -> tuple[list[tuple[str, int, int]], int]:
    """Put the accepted samples' JSON one after the other into `records`.

    Gives (id, offset, length) in the order of ids, and how many rows were left out because they repeat an id.
    """
    places: dict[str, tuple[int, int]] = {}
    end = repeated = 0
    with records.open("wb") as file:
        for id, record in _accepted(folder):
            if id in places:
                repeated += 1
                continue
            data = record.encode()
            file.write(data)
            places[id] = (end, len(data))
            end += len(data)
    return [(id, *places[id]) for id in sorted(places)], repeated


def _accepted(folder: RunFolder) -> Iterator[tuple[str, str]]:
    parts = folder.parts("samples")
    if not parts:
        return
    rows = pa.dataset.dataset(parts, format="parquet", schema=SAMPLES)
    where = pc.field("outcome") == Outcome.ACCEPTED.value
    for batch in rows.to_batches(columns=["id", "record"], filter=where, batch_size=256):
        yield from zip(batch["id"].to_pylist(), batch["record"].to_pylist(), strict=True)


def _write(
    scratch: Path, order: list[tuple[str, int, int]], retention: Retention, provenance: Mapping[str, Any]
) -> Totals:
    """The data files, into `scratch`."""
    totals = Totals()
    with ExitStack() as stack:
        records = stack.enter_context((scratch / "records").open("rb"))
        sft = stack.enter_context(_Table(scratch, "uc-data-sft", SFT))
        grpo = stack.enter_context(_Table(scratch, "uc-data-grpo", GRPO))
        everything = stack.enter_context((scratch / "uc-data.jsonl").open("w", encoding="utf-8"))
        for _, offset, length in order:
            records.seek(offset)
            sample = Sample.model_validate_json(records.read(length))
            row = sft_example(sample, retention)
            sft.add(row)
            grpo.add(grpo_example(sample, retention))
            everything.write(_line({**sample.model_dump(mode="json"), "made_by": provenance}))
            totals.add(Label(row["label"]), sample)
    return totals


class _Table:
    """The same rows as JSONL and as Parquet."""

    def __init__(self, folder: Path, name: str, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows: list[dict[str, Any]] = []
        self.jsonl = (folder / f"{name}.jsonl").open("w", encoding="utf-8")
        self.parquet = pq.ParquetWriter(folder / f"{name}.parquet", schema, compression="zstd")

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, *error: object) -> None:
        self._flush()
        self.parquet.close()
        self.jsonl.close()

    def add(self, row: dict[str, Any]) -> None:
        self.jsonl.write(_line(row))
        self.rows.append(row)
        if len(self.rows) >= ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self.rows:
            self.parquet.write_table(pa.Table.from_pylist(self.rows, schema=self.schema))
            self.rows = []


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _provenance(folder: RunFolder) -> dict[str, Any]:
    method = folder.method
    return {
        "run": method["fingerprint"],
        "prompts": method["prompts"],
        "models": {role: _model(engine) for role, engine in method["engines"].items()},
    }


def _model(engine: Mapping[str, Any]) -> str:
    """The model of a role; of a folder on this machine, which is nobody else's business, the last part."""
    name = str(engine["model"])
    if name == "embedded":
        name = EMBEDDED
    elif name.startswith(("/", "./", "../", "~")):
        name = Path(name).name
    return f"{name} with adapter {Path(engine['adapter']).name}" if engine["adapter"] else name


EMBEDDED = "SmolLM2-135M-Instruct"


ABLATIONS = {
    "task_filter": "the task filter",
    "memory": "the memory and its schemas",
    "trajectory_update": "the update of the memory",
    "confidence_filter": "the confidence filter",
    "constraint_verifier": "the constraint verifier (one direct check instead)",
}
RETAINED = {
    Retention.FULL: "there in full",
    Retention.PARTIAL: f"cut to some {HEAD} characters of their beginning and {TAIL} of their end, a marker between",
    Retention.OMIT: "replaced by a placeholder",
}
SOURCES_LISTED = 30


def card(
    name: str,
    method: Mapping[str, Any],
    facts: Mapping[str, Any],
    totals: Totals,
    retention: Retention,
    unfinished: int,
) -> str:
    """The dataset card: front matter as the Hugging Face hub reads it, then what a person must know."""
    count = totals.of(None)
    front = {
        "pretty_name": f"UC-Data ({name})",
        "language": [language for language in totals.languages if language != "und"],
        "task_categories": ["text-classification"],
        "tags": ["synthetic", "dialogue", "implicit-conflict"],
        "size_categories": [_size(count)],
        "configs": [
            {"config_name": "sft", "default": True, "data_files": "uc-data-sft.parquet"},
            {"config_name": "grpo", "data_files": "uc-data-grpo.parquet"},
        ],
    }
    settings = method["method"]
    models = {role: _model(engine) for role, engine in method["engines"].items()}
    off = [words for key, words in ABLATIONS.items() if not settings[key]]
    facts_table = {
        **models,
        "prompts": f"version {method['prompts']}",
        "method": f"fingerprint {method['fingerprint']}",
        "tau": f"{settings['tau']}: least confidence of the verifier (0 to 100)",
        "alpha": f"{settings['alpha']}: share of eligible dialogues that also give an ND sample",
        "K": f"{settings['k']}: successes, and failures, that the memory keeps per schema",
        **({"switched off": "; ".join(off)} if off else {}),
    }
    sources = [f"| {_cell(source)} | {counts['taken']} |" for source, counts in facts["sources"].items()]
    if len(sources) > SOURCES_LISTED:
        sources[SOURCES_LISTED:] = [f"| and {len(sources) - SOURCES_LISTED} more | |"]
    lines = [
        "---",
        yaml.safe_dump(front, sort_keys=False, allow_unicode=True).strip(),
        "---",
        "",
        f"# UC-Data ({name})",
        "",
        f"{count} {INTRODUCTION}",
    ]
    if unfinished:
        open_ones = f"{unfinished} of {facts['taken']} dialogues are open"
        lines += [f"**The run was not finished when this was exported: {open_ones}.**", ""]
    lines += [
        HOW,
        f"    synuc synthesize --config config.yaml --run {name}",
        f"    synuc export {name} --retention {retention.value}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {_cell(key)} | {_cell(value)} |" for key, value in facts_table.items()),
        "",
        "| source of seeds | dialogues used |",
        "|---|--:|",
        *sources,
        "",
        "## What is in it",
        "",
        f"| label | {' | '.join(totals.languages)} | all | turns | longest | messages |",
        f"|---|{'--:|' * len(totals.languages)}--:|--:|--:|--:|",
        *(_row(totals, label) for label in Label if totals.of(label)),
        _row(totals, None),
        "",
        "Turns and messages are averages over the history, without the follow-up.",
        "",
        f"**Retention `{retention.value}`:** in the `messages`, the assistant's turns of the history are",
        f"{RETAINED[retention]}. Evaluate and serve with the same setting.",
        "",
        FIELDS,
        "- Labels and follow-ups come from language models, and are judged by them:",
        f"  {_cell(', '.join(sorted({*models.values()})))}.",
        "  No person has checked them here: read some before you rely on them.",
    ]
    if models["generator"] == models["verifier"]:
        lines.append("- One model generated and verified: it tends to agree with itself.")
    if EMBEDDED in models.values():
        lines.append(f"- {EMBEDDED} is there to see the machinery work; its judgments are worth nothing.")
    return "\n".join([*lines, LIMITS])


INTRODUCTION = """\
chat histories, each with a follow-up user message and how it relates to what the same user required before:

- `ND` normal dialogue: the follow-up can be met together with everything that is still valid;
- `ER` explicit revision: it openly replaces or cancels an earlier requirement;
- `IC` implicit conflict: it can't be met together with one, and says nothing of a change.

For training models that notice such a conflict before the assistant answers.
"""

HOW = """\
## How it was made

With SynUC ([paper](https://arxiv.org/abs/2609.19155)): requirements are extracted from real chats, a conflicting one is
generated along one of Hymes's SPEAKING dimensions, a follow-up is written, and a verifier judges it in two stages.
"""

FIELDS = """\
| file | what |
|---|---|
| `uc-data-sft` | chat messages: task, history and follow-up; then reasoning and label as the answer |
| `uc-data-grpo` | the same user message, with a reference instead of an answer |
| `uc-data` | every intermediate of the same samples, the assistant's turns in full |

| field | in | what |
|---|---|---|
| `id` | all | the seed's id and the label |
| `seed_id` | all | hash of the seed dialogue: split by it, so that no history is in two parts |
| `label` | all | `ND`, `ER` or `IC` |
| `language` | all | ISO 639-1, `und` if undetermined |
| `messages` | sft, grpo | `role` and `content` |
| `reference` | grpo | `label`; for ER and IC also `relation`, `historical_constraint`, `new_constraint` |
| `dialogue`, `follow_up` | uc-data | the history and the message |
| `source`, `origin` | uc-data | where the seed was read |
| `eligibility`, `tasks`, `constraints` | uc-data | the task filter's answer, tasks, requirements still valid |
| `speaking`, `repository_version` | uc-data | SPEAKING dimension, version of the memory |
| `anchor`, `new` | uc-data | the pair |
| `continues`, `new_constraints`, `anchor_verdict`, `judgment` | uc-data | what the verifier found |
| `made_by` | uc-data | fingerprint of the method, version of the prompts, models |

A relation `H_x_N_y` says whether the historical (H) and the new (N) requirement are explicit (E) or implicit (I).

## Limits
"""

LIMITS = """\
- The follow-ups of ER and IC are synthetic: no user wrote them. Those of ND are the users' own last messages.
- A confidence is the verifier's own number, not a measured probability.
- Histories come from the seeds, with their licence and terms, personal data, errors and offensive text.
- The shares of labels and languages are those of the synthesis and say nothing about real chats.
"""


def _row(totals: Totals, label: Label | None) -> str:
    labels = [label] if label else list(Label)
    count = totals.of(label)
    turns = sum(totals.turns[label] for label in labels) / count
    longest = max(totals.max_turns[label] for label in labels)
    per_language = " | ".join(str(totals.of(label, language)) for language in totals.languages)
    name = f"`{label.value}`" if label else "all"
    return f"| {name} | {per_language} | {count} | {turns:.2f} | {longest} | {2 * turns:.2f} |"


def _cell(text: str) -> str:
    """`text` in a cell of a table: one line, nothing that ends the cell or is markup."""
    text = " ".join(text.split())
    return "".join(f"\\{char}" if char in "\\|`*_<>[]" else char for char in text)


def _size(count: int) -> str:
    """The hub's word for a number of rows."""
    bounds = [(10**n, f"{10 ** (n % 3)}{'KMBT'[n // 3 - 1]}") for n in range(3, 13)]
    low = ""
    for bound, word in bounds:
        if count < bound:
            return f"{low}<n<{word}" if low else f"n<{word}"
        low = word
    return f"n>{low}"
