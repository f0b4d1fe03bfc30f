"""The model card of an adapter: what it is, what it was made from, what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from synuc.config import is_place
from training.folder import TrainFolder

# What a card shows of the last logged steps, where the stage logs it.
FIGURES = (
    "loss",
    "mean_token_accuracy",
    "reward",
    "reward/label",
    "reward/fmt",
    "reward/attr",
    "unparseable",
    "unlabelled",
)
LAST_STEPS = 10
QUANTISED = ", from a copy quantised to 4 bits (Q4_1): its weights differ a little from the hub's"


def card(folder: TrainFolder, merged: bool = False) -> str:
    """Front matter as the Hugging Face hub reads it, then what a person must know.

    It is the card of the adapter, or of the model that results from merging it into its backbone.
    """
    method, rows = folder.method, folder.rows()
    model = method["backbone"]["model"]
    base = public_name(model)
    front = {
        "library_name": "transformers" if merged else "peft",
        "base_model": base,
        "base_model_relation": "finetune" if merged else "adapter",
        "tags": [*([] if merged else ["lora"]), "implicit-conflict", "synuc"],
        "pipeline_tag": "text-generation",
    }
    optimizer, lora = method["optimizer"], method["lora"]
    told = {
        **json.loads(folder.facts.read_text("utf-8")),
        "backbone": base + (QUANTISED if model == "embedded" else ""),
        "LoRA": f"rank {lora['rank']}, alpha {lora['alpha']}, on {lora['targets']}",
        "learning rate": optimizer["learning_rate"],
        "epochs": optimizer["epochs"],
        "steps": rows[-1]["step"] if rows else 0,
        "seed": method["seed"],
        "method": f"fingerprint {method['fingerprint']}",
    }
    if method.get("start"):
        told["began with"] = f"the adapter of the run with fingerprint {method['start']}"
    lines = [
        "---",
        yaml.safe_dump(front, sort_keys=False, allow_unicode=True).strip(),
        "---",
        "",
        f"# {folder.path.name}",
        "",
        "A detector of implicit user-side conflicts: it reads a dialogue and the user's follow-up, and answers with "
        "structured reasoning that ends in Normal Dialogue, Explicit Revision or Implicit Conflict.",
        "",
        _form(folder, base, merged),
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in told.items()),
        "",
        f"Means over the last {len(rows[-LAST_STEPS:])} logged steps of training (not a test result):",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value:.4f} |" for name, value in last_figures(rows).items()),
        "",
        "The prompt must be the one it was trained with (`synuc.formatting.detector_messages`), with the same "
        "retention of assistant turns and thinking off.",
        "",
    ]
    return "\n".join(lines)


def last_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The means of FIGURES over the last logged steps, the rows of metrics.jsonl."""
    return {
        name: sum(values) / len(values)
        for name in FIGURES
        if (values := [row[name] for row in rows[-LAST_STEPS:] if isinstance(row.get(name), (int, float))])
    }


def _form(folder: TrainFolder, base: str, merged: bool) -> str:
    if merged:
        return f"The LoRA adapter is merged into the weights of {base}: load it as any model."
    if folder.base.exists():
        return (
            f"A LoRA adapter. It sits on {base} with the adapter that it began with merged in, not on {base} itself: "
            "`synuc adapter merge` makes a whole model of both."
        )
    return f"A LoRA adapter for {base}."


def public_name(model: str) -> str:
    """A backbone's name; of a folder on this machine, which is nobody else's business, the last part."""
    if model == "embedded":
        return "HuggingFaceTB/SmolLM2-135M-Instruct"
    return Path(model).name if is_place(model) else model
