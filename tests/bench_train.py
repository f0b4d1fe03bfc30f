"""Tokens per second of our SFT and GRPO against a bare TRL script with the same settings, in turns on one machine.

The bare scripts below are what one writes without this project: a trainer, its arguments, nothing around it. Both
sides take the same steps on the same prompts and report the time between the second and the last logged step, so that
starting Ray (whose processes still settle during the first step) and loading the model count on neither side.
`python -m tests.bench_train` prints ours over theirs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from synuc.layers import compose
from tests.annotated import write_export
from training.config import GrpoConfig, SftConfig
from training.driver import train_grpo, train_sft
from training.folder import TrainFolder

SFT_STEPS, GRPO_STEPS, ROUNDS = 14, 10, 2
LORA = {"r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
COMMON = [
    "optimizer.micro_batch_size=1",
    "optimizer.schedule=constant_with_warmup",
    "optimizer.warmup=0.0",
    "record.save_every=100",
    "record.trackers=[]",
]

BARE = """
import json, sys, time
from pathlib import Path
import pyarrow.parquet as pq, torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import {config}, {trainer}

job = json.loads(sys.argv[1])
torch.set_num_threads(job["threads"])
tokenizer = AutoTokenizer.from_pretrained(job["model"])
model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"]))
rows = pq.read_table(job["data"]).to_pylist()
times = []

class Times(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            times.append((time.monotonic(), state.num_input_tokens_seen))

{body}
trainer.add_callback(Times())
trainer.train()
(first, before), (last, after) = times[1], times[-1]
print("RESULT", (after - before) / (last - first), int(after - before))
"""
ARGUMENTS = """output_dir=job["scratch"], max_steps=job["steps"], per_device_train_batch_size=1, logging_steps=1,
    lr_scheduler_type="constant", bf16=False, use_cpu=True, gradient_checkpointing=False, report_to=[],
    save_strategy="no", disable_tqdm=True, include_num_input_tokens_seen="non_padding", seed=0, data_seed=0"""
SFT_BODY = f"""
rows = [{{"prompt": row["messages"][:1], "completion": row["messages"][1:]}} for row in rows]
args = SFTConfig({ARGUMENTS}, learning_rate=1e-4, gradient_accumulation_steps=2, max_length=None)
trainer = SFTTrainer(model=model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
    peft_config=LoraConfig(**job["lora"]))
"""
GRPO_BODY = f"""
rows = [{{"prompt": row["messages"], "reference": row["reference"]}} for row in rows]
def reward(completions, **kwargs):
    return [float(len(completion[0]["content"]) % 7) for completion in completions]
args = GRPOConfig({ARGUMENTS}, learning_rate=5e-7, gradient_accumulation_steps=4, num_generations=4,
    temperature=0.8, max_completion_length=48, loss_type="dr_grpo", scale_rewards="none", beta=0.0)
trainer = GRPOTrainer(model=model, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows),
    processing_class=tokenizer, peft_config=LoraConfig(**job["lora"]))
"""


class Speed(NamedTuple):
    """Tokens per second, and over how many tokens."""

    rate: float
    tokens: int


def bare(kind: str, job: dict[str, Any]) -> Speed:
    """The bare script's speed."""
    names = {"sft": ("SFTConfig", "SFTTrainer", SFT_BODY), "grpo": ("GRPOConfig", "GRPOTrainer", GRPO_BODY)}
    config, trainer, body = names[kind]
    script = BARE.format(config=config, trainer=trainer, body=body)
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(job)], capture_output=True, text=True, check=False, timeout=1200
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            speed, tokens = line.split()[1:]
            return Speed(float(speed), int(tokens))
    raise RuntimeError(done.stderr[-2000:])


def ours(run: Path) -> Speed:
    """The speed of a run of ours."""
    first, last = (TrainFolder(run).rows()[n] for n in (1, -1))
    tokens = last["num_input_tokens_seen"] - first["num_input_tokens_seen"]
    return Speed(tokens / (last["time"] - first["time"]), tokens)


def main() -> None:
    """Measure in turns, and print the ratios of the means."""
    from actors.embedded import embedded_model
    from actors.vllm_engine import cpu_dtype

    figures: dict[str, list[tuple[Speed, Speed]]] = {"sft": [], "grpo": []}
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        (home / "export").mkdir()
        write_export(home / "export")
        job = {"model": str(embedded_model()), "dtype": cpu_dtype(), "lora": LORA, "scratch": str(home / "bare")}
        for turn in range(ROUNDS):
            started = time.monotonic()
            run = home / f"sft-{turn}"
            sets = ["backbone.model=embedded", f"data.path={home / 'export'}", "optimizer.batch_size=2", *COMMON]
            sft = compose(SftConfig, ["configs/train/sft.yaml"], [*sets, f"optimizer.max_steps={SFT_STEPS}"])
            train_sft(sft, run, Console(quiet=True))
            theirs = bare(
                "sft",
                {**job, "threads": 2, "steps": SFT_STEPS, "data": str(home / "export" / "uc-data-sft.parquet")},
            )
            figures["sft"].append((ours(run), theirs))

            sets = [f"data.path={home / 'export'}", f"start={run}", "optimizer.batch_size=1", "rollout.max_tokens=48"]
            grpo = compose(
                GrpoConfig, ["configs/train/grpo.yaml"], [*sets, *COMMON, f"optimizer.max_steps={GRPO_STEPS}"]
            )
            run = home / f"grpo-{turn}"
            train_grpo(grpo, run, Console(quiet=True))
            theirs = bare(
                "grpo",
                {**job, "threads": 2, "steps": GRPO_STEPS, "data": str(home / "export" / "uc-data-grpo.parquet")},
            )
            figures["grpo"].append((ours(run), theirs))
            for kind, pairs in figures.items():
                mine, theirs = pairs[-1]
                print(f"{kind}: {mine.rate:.0f} tokens/s ({mine.tokens}), bare {theirs.rate:.0f} ({theirs.tokens})")
            print(f"round {turn + 1} of {ROUNDS}: {time.monotonic() - started:.0f} s", flush=True)
    for kind, pairs in figures.items():
        mine, bare_ones = (sum(one.rate for one in column) / len(pairs) for column in zip(*pairs, strict=True))
        print(f"{kind}: {mine:.0f} tokens/s, bare TRL {bare_ones:.0f} tokens/s, ratio {mine / bare_ones:.2f}")


if __name__ == "__main__":
    main()
