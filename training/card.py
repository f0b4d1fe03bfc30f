"""The model card of an adapter: what it is, what it was made from, what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from training.folder import TrainFolder

# What a card shows of the last logged steps, where the stage logs it.
FIGURES = ("loss", "mean_token_accuracy", "reward", "reward/label", "reward/fmt", "reward/attr", "unparseable")
LAST_STEPS = 10


def card(folder: TrainFolder, facts: Mapping[str, Any]) -> str:
    """Front matter as the Hugging Face hub reads it, then what a person must know."""
    method, rows = folder.method, folder.rows()
    base = public_name(method["backbone"]["model"])
    front = {
        "library_name": "peft",
        "base_model": base,
        "tags": ["lora", "implicit-conflict", "synuc"],
        "pipeline_tag": "text-generation",
    }
    last = rows[-LAST_STEPS:]
    measured = {
        name: sum(values) / len(values)
        for name in FIGURES
        if (values := [row[name] for row in last if isinstance(row.get(name), (int, float))])
    }
    optimizer, lora = method["optimizer"], method["lora"]
    told = {
        **facts,
        "backbone": base,
        "LoRA": f"rank {lora['rank']}, alpha {lora['alpha']}, on {lora['targets']}",
        "learning rate": optimizer["learning_rate"],
        "epochs": optimizer["epochs"],
        "steps": rows[-1]["step"] if rows else 0,
        "seed": method["seed"],
        "method": f"fingerprint {method['fingerprint']}",
    }
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
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in told.items()),
        "",
        f"Means over the last {len(last)} logged steps of training (not a test result):",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value:.4f} |" for name, value in measured.items()),
        "",
        "The prompt must be the one it was trained with (`synuc.formatting.detector_messages`), with the same "
        "retention of assistant turns and thinking off.",
        "",
    ]
    return "\n".join(lines)


def public_name(model: str) -> str:
    """A backbone's name; of a folder on this machine, which is nobody else's business, the last part."""
    if model == "embedded":
        return "HuggingFaceTB/SmolLM2-135M-Instruct"
    return Path(model).name if model.startswith(("/", "./", "../", "~")) else model
