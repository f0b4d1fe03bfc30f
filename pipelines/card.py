"""The dataset card of an export: what the hub reads, and what a person must know before using the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from pipelines.card_method import EMBEDDED, HOW, made_with, models_of
from synuc.formatting import HEAD, TAIL, Retention
from synuc.sample import Sample
from synuc.types import Label

RETAINED = {
    Retention.FULL: "there in full",
    Retention.PARTIAL: f"cut to some {HEAD} characters of their beginning and {TAIL} of their end, a marker between",
    Retention.OMIT: "replaced by a placeholder",
}
SOURCES_LISTED = 30

INTRODUCTION = """\
chat histories, each with a follow-up user message and how it relates to what the same user required before:

- `ND` normal dialogue: the follow-up can be met together with everything that is still valid;
- `ER` explicit revision: it openly replaces or cancels an earlier requirement;
- `IC` implicit conflict: it can't be met together with one, and says nothing of a change.

For training models that notice such a conflict before the assistant answers.
"""

FIELDS = """\
| file | what |
|---|---|
| `uc-data-sft` | chat messages: task, history and follow-up; then reasoning and label as the answer |
| `uc-data-grpo` | the same user message, with a reference instead of an answer |
| `uc-data` | every intermediate of the same samples, the assistant's turns in full |
| `uc-bench` | the same samples as items for `synuc eval uc --bench` |

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
| `contrast` | uc-data | of a contrastive ND: the pair whose things it mentions without bringing it in |
| `continues`, `new_constraints`, `anchor_verdict`, `judgment` | uc-data | what the verifier found |
| `difficulty` | uc-data, where detectors were run | how often they were wrong, and how they disagreed |
| `made_by` | uc-data | fingerprint of the method, version of the prompts, models |

A relation `H_x_N_y` says whether the historical (H) and the new (N) requirement are explicit (E) or implicit (I).

## Limits
"""

WRITTEN_BY = {
    True: "- The follow-ups of ER and IC are synthetic: no user wrote them. Those of ND are the users' own messages.",
    False: "- All follow-ups are synthetic, those of ND too: no user wrote them.",
}
"""Whether the users' own messages are among the follow-ups."""

LIMITS = """\
- Histories come from the seeds, with their licence and terms, personal data, errors and offensive text.
- The shares of labels and languages are those of the synthesis and say nothing about real chats.
"""


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


@dataclass(frozen=True)
class LeftOut:
    """What an export left out, and by which keys: of each value how many samples are here, and how many aren't."""

    samples: int
    balance: tuple[str, ...]
    stratify: tuple[str, ...]
    values: Mapping[str, Mapping[str, tuple[int, int]]]


def card(
    name: str,
    method: Mapping[str, Any],
    facts: Mapping[str, Any],
    totals: Totals,
    retention: Retention,
    unfinished: int,
    spared: LeftOut | None = None,
) -> str:
    """The dataset card: front matter as the Hugging Face hub reads it, then what a person must know."""
    models = models_of(method)
    lines = [
        "---",
        yaml.safe_dump(_front(name, totals), sort_keys=False, allow_unicode=True).strip(),
        "---",
        "",
        f"# UC-Data ({name})",
        "",
        f"{totals.of(None)} {INTRODUCTION}",
    ]
    if unfinished:
        open_ones = f"{unfinished} of {facts['taken']} dialogues are open"
        lines += [f"**The run was not finished when this was exported: {open_ones}.**", ""]
    lines += [
        "## How it was made",
        "",
        HOW[method["method"]["program"]],
        "",
        f"    synuc synthesize --config config.yaml --run {name}",
        f"    synuc export {name} --retention {retention.value}{_chosen_by(spared)}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {_cell(key)} | {_cell(value)} |" for key, value in made_with(method).items()),
        "",
        *_sources(facts["sources"]),
        "",
        *_contents(totals),
        "",
        *_left_out(spared),
        f"**Retention `{retention.value}`:** in the `messages`, the assistant's turns of the history are",
        f"{RETAINED[retention]}. Evaluate and serve with the same setting.",
        "",
        FIELDS,
        *_judged_by(models),
        WRITTEN_BY[method["method"]["program"] == "synuc"],
        LIMITS,
    ]
    return "\n".join(lines)


def _front(name: str, totals: Totals) -> dict[str, Any]:
    return {
        "pretty_name": f"UC-Data ({name})",
        "language": [language for language in totals.languages if language != "und"],
        "task_categories": ["text-classification"],
        "tags": ["synthetic", "dialogue", "implicit-conflict"],
        "size_categories": [_size(totals.of(None))],
        "configs": [
            {"config_name": "sft", "default": True, "data_files": "uc-data-sft.parquet"},
            {"config_name": "grpo", "data_files": "uc-data-grpo.parquet"},
        ],
    }


def _sources(sources: Mapping[str, Mapping[str, int]]) -> list[str]:
    rows = [f"| {_cell(source)} | {counts['taken']} |" for source, counts in sources.items()]
    if len(rows) > SOURCES_LISTED:
        rows[SOURCES_LISTED:] = [f"| and {len(rows) - SOURCES_LISTED} more | |"]
    return ["| source of seeds | dialogues used |", "|---|--:|", *rows]


def _contents(totals: Totals) -> list[str]:
    return [
        "## What is in it",
        "",
        f"| label | {' | '.join(totals.languages)} | all | turns | longest | messages |",
        f"|---|{'--:|' * len(totals.languages)}--:|--:|--:|--:|",
        *(_row(totals, label) for label in Label if totals.of(label)),
        _row(totals, None),
        "",
        "Turns and messages are averages over the history, without the follow-up.",
    ]


def _chosen_by(spared: LeftOut | None) -> str:
    """The options of the command that chose the samples."""
    if spared is None:
        return ""
    options = {"balance": spared.balance, "stratify": spared.stratify}
    used = "".join(f" --{name} {','.join(keys)}" for name, keys in options.items() if keys)
    difficulty = "difficulty" in (*spared.balance, *spared.stratify)
    return used + (" --difficulty RUN ..." if difficulty else "")


def _left_out(spared: LeftOut | None) -> list[str]:
    if spared is None or not spared.balance:
        return []
    evenly = f"evenly by {', '.join(spared.balance)}"
    in_proportion = f", and in proportion by {', '.join(spared.stratify)}" if spared.stratify else ""
    rows = [
        f"| {key} | {_cell(value)} | {here} | {out} |"
        for key, values in spared.values.items()
        for value, (here, out) in values.items()
    ]
    return [
        f"**{spared.samples} accepted samples were left out.** Those here were taken {evenly}{in_proportion}.",
        "",
        "| by | value | here | left out |",
        "|---|---|--:|--:|",
        *rows,
        "",
    ]


def _judged_by(models: Mapping[str, str]) -> list[str]:
    judged = "and are judged by them" if "verifier" in models else "and nothing has judged them"
    lines = [
        f"- Labels and follow-ups come from language models, {judged}:",
        f"  {_cell(', '.join(sorted({*models.values()})))}.",
        "  No person has checked them here: read some before you rely on them.",
    ]
    if models["generator"] == models.get("verifier"):
        lines.append("- One model generated and verified: it tends to agree with itself.")
    if "verifier" in models:
        lines.append("- A confidence is the verifier's own number, not a measured probability.")
    if EMBEDDED in models.values():
        lines.append(f"- {EMBEDDED} is there to see the machinery work; its judgments are worth nothing.")
    return lines


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
