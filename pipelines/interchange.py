"""Bundles for other trainers: the exported data as ms-swift and LLaMA-Factory read it, each with its command line.

The texts are those of the export, but a token that the trainer itself reads as control is broken as well
(`synuc.neutralise`): of both, the slots that their templates fill after the user's text is in, and of ms-swift, the
tags that it takes for images where the model has eyes.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from pipelines.export import ExportError, publish
from pipelines.run_folder import RunFolder
from synuc.folder import json_line
from synuc.neutralise import neutralise

SFT = "uc-data-sft.jsonl"
GRPO = "uc-data-grpo.jsonl"


class Trainer(StrEnum):
    """Whom a bundle is for; the name of its folder."""

    MS_SWIFT = "ms-swift"
    LLAMA_FACTORY = "llama-factory"


def bundle(folder: RunFolder, trainers: Collection[Trainer]) -> list[str]:
    """Write RUN/export/TRAINER from the exported files, each file whole or not at all; the lines say what is there.

    A bundle that an earlier export left is made anew too, so that it never disagrees with the files beside it.

    Raises:
        ExportError: a file can't be written.
    """
    source = folder.path / "export"
    lines = []
    for trainer in Trainer:
        target = source / trainer
        if trainer not in trainers and not target.exists():
            continue
        try:
            with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.path) as name:
                scratch = Path(name)
                WRITERS[trainer](source, scratch)
                target.mkdir(exist_ok=True)
                for file in sorted(scratch.iterdir()):
                    publish(file, target / file.name)
        except OSError as error:
            reason = error.strerror or error
            raise ExportError(f"can't write to {target}: {reason}; make room and export again") from None
        lines.append(f"  {target}{NOTES[trainer]}")
    return lines


NOTES = {
    Trainer.MS_SWIFT: " (SFT and GRPO; README.md has the commands, reward.py the reward)",
    Trainer.LLAMA_FACTORY: " (SFT only: LLaMA-Factory has no GRPO; README.md has the command)",
}


def _ms_swift(source: Path, scratch: Path) -> None:
    _convert(source / SFT, scratch / SFT, lambda row: {"messages": _messages(row, SWIFT_TOKENS)})
    _convert(source / GRPO, scratch / GRPO, _swift_grpo)
    (scratch / "README.md").write_text(SWIFT_README, encoding="utf-8")
    (scratch / "reward.py").write_text(SWIFT_REWARD, encoding="utf-8")


def _swift_grpo(row: Mapping[str, Any]) -> dict[str, Any]:
    # As text: in a column of objects the fields that ND leaves empty have no type until the first pair is read.
    solution = json.dumps(row["reference"], ensure_ascii=False)
    return {"messages": _messages(row, SWIFT_TOKENS), "solution": neutralise(solution, SWIFT_TOKENS)}


def _llama_factory(source: Path, scratch: Path) -> None:
    _convert(source / SFT, scratch / SFT, lambda row: {"messages": _messages(row, LLAMA_FACTORY_TOKENS)})
    (scratch / "dataset_info.json").write_text(json.dumps(DATASET_INFO, indent=2) + "\n", encoding="utf-8")
    (scratch / "README.md").write_text(LLAMA_FACTORY_README, encoding="utf-8")


WRITERS = {Trainer.MS_SWIFT: _ms_swift, Trainer.LLAMA_FACTORY: _llama_factory}


def _convert(source: Path, target: Path, convert: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
    with source.open(encoding="utf-8") as rows, target.open("w", encoding="utf-8") as file:
        file.writelines(json_line(convert(json.loads(row))) for row in rows)


def _messages(row: Mapping[str, Any], tokens: Collection[str]) -> list[dict[str, str]]:
    return [{"role": said["role"], "content": neutralise(said["content"], tokens)} for said in row["messages"]]


# swift/template/base.py: `_replace_image_tags`, `_replace_start_image_tags`, `_concat_context_list`.
SWIFT_TOKENS = ("<img>", "<start-image>", "{{ROUND0}}", "{{ROUND1}}")
# src/llamafactory/data/formatter.py: `StringFormatter.apply`.
LLAMA_FACTORY_TOKENS = ("{{idx}}",)

# Not the formatting "openai": it puts "detailed thinking off" in front of every dialogue (data/converter.py).
DATASET_INFO = {
    "uc-data-sft": {
        "file_name": SFT,
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": {
            "role_tag": "role",
            "content_tag": "content",
            "user_tag": "user",
            "assistant_tag": "assistant",
            "system_tag": "system",
        },
    }
}

SWIFT_README = """\
# UC-Data for ms-swift

For [ms-swift](https://github.com/modelscope/ms-swift) 4. Run the commands in this folder. Their values are those of the
SynUC paper; what it doesn't name is ms-swift's own. What the data are: the dataset card, `../README.md`.

## SFT

    swift sft \\
        --model Qwen/Qwen3.5-4B \\
        --dataset uc-data-sft.jsonl \\
        --tuner_type lora --lora_rank 8 \\
        --learning_rate 1e-4 \\
        --num_train_epochs 4 \\
        --torch_dtype bfloat16 \\
        --output_dir output/sft

`--use_hf true` takes the model from Hugging Face. `--split_dataset_ratio` splits at random and would put one history on
both sides: split by `seed_id` (in `../uc-data-sft.jsonl`, whose lines are in the same order) and give `--val_dataset`.

## GRPO

Each row's `solution` is the reference as JSON: `label`, and for ER and IC `relation`, `historical_constraint` and
`new_constraint`. ms-swift hands the solutions of a batch to the reward function in `reward.py`, which is the paper's
equation 8: 1 for the label, 0.2 for the form and, where both are right, 0.4 for the pair with its types. Whether two
wordings are one constraint is decided by their words. It needs pydantic, jinja2 and the SynUC checkout on `PYTHONPATH`.

    swift rlhf --rlhf_type grpo \\
        --model Qwen/Qwen3.5-4B \\
        --adapters SFT_CHECKPOINT --ref_adapters SFT_CHECKPOINT \\
        --dataset uc-data-grpo.jsonl \\
        --external_plugins reward.py --reward_funcs synuc \\
        --loss_type dr_grpo --scale_rewards none \\
        --num_generations 4 --temperature 0.8 \\
        --per_device_train_batch_size 4 --max_completion_length 2048 \\
        --tuner_type lora --lora_rank 8 \\
        --learning_rate 5e-7 \\
        --num_train_epochs 1 \\
        --torch_dtype bfloat16 --enable_thinking false \\
        --output_dir output/grpo
"""

# swift/rewards/orm.py: `ORM`, `orms`.
SWIFT_REWARD = '''\
"""The reward of the SynUC paper (equation 8) for ms-swift 4: --external_plugins reward.py --reward_funcs synuc"""

from swift.rewards import ORM, orms
from synuc.matching import THRESHOLD, lexical
from synuc.rewards import Reference, reward


class Synuc(ORM):
    """R = R_label + 0.2 R_fmt + 0.4 R_attr, the last only where label and form are right."""

    def __call__(self, completions, solution, **kwargs):
        references = map(Reference.model_validate_json, solution)
        return [reward(text, reference, same).total for text, reference in zip(completions, references, strict=True)]


def same(a, b):
    """Whether two constraints, `dimension: value`, share their words."""
    return lexical(a, b) >= THRESHOLD


orms["synuc"] = Synuc
'''

LLAMA_FACTORY_README = """\
# UC-Data for LLaMA-Factory

For [LLaMA-Factory](https://github.com/hiyouga/LLaMA-Factory), SFT only: it has no GRPO. Run the command in this folder.
Its values are those of the SynUC paper; what it doesn't name is LLaMA-Factory's own, and `--cutoff_len`. What the data
are: the dataset card, `../README.md`.

    llamafactory-cli train \\
        --stage sft --do_train \\
        --model_name_or_path Qwen/Qwen3.5-4B --template qwen3_5 --enable_thinking false \\
        --dataset_dir . --dataset uc-data-sft \\
        --cutoff_len 16384 \\
        --finetuning_type lora --lora_rank 8 --lora_target all \\
        --learning_rate 1e-4 \\
        --num_train_epochs 4 \\
        --bf16 \\
        --output_dir output/sft

- What is longer than `--cutoff_len` tokens (2048 if not given) is cut without a word, the follow-up first.
- Another model needs its own `--template`. Without `--enable_thinking false`, a reasoning model also learns to write an
  empty thought.
- `--val_size` splits at random and would put one history on both sides: split by `seed_id` (in `../uc-data-sft.jsonl`,
  whose lines are in the same order) and give `--eval_dataset`.
"""
