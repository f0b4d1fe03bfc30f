"""An adapter of a run serves as it is: plain vLLM and plain PEFT give the same answer, which is not the base's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.embedded import embedded_model
from tests.tiny import export_folder, sft_run
from training.config import Backbone
from training.data import Encoder

pytest.importorskip("vllm")
pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("one_thread")]

TOKENS = 24
ASKED = [{"role": "user", "content": "Is there a conflict in chat 1?"}]
VLLM = f"""
import json, sys
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

if __name__ == "__main__":
    model, adapter, prompt = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    llm = LLM(model, dtype="float32", max_model_len=512, max_num_seqs=2, enforce_eager=True, enable_lora=True)
    greedy = SamplingParams(temperature=0, max_tokens={TOKENS})
    answers = []
    for lora in (None, LoRARequest("detector", 1, adapter)):
        answer = llm.generate([{{"prompt_token_ids": prompt}}], greedy, lora_request=lora, use_tqdm=False)[0]
        answers.append(list(answer.outputs[0].token_ids))
    print(json.dumps(answers))
"""


def by_vllm(folder: Path, adapter: Path, prompt: list[int], tmp_path: Path) -> tuple[list[int], list[int]]:
    """The greedy answers of the base and of the adapter, from a process that knows nothing of this project."""
    script = tmp_path / "serve.py"
    script.write_text(VLLM, "utf-8")
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(folder), str(adapter), json.dumps(prompt)]
    done = subprocess.run(command, env={**os.environ, **quiet, **cpu}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    base, adapted = json.loads(done.stdout.strip().splitlines()[-1])
    return base, adapted


def by_transformers(model: Any, prompt: list[int]) -> list[int]:
    """The greedy answer."""
    ids = torch.tensor([prompt])
    made = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS)
    answer: list[int] = made[0, len(prompt) :].tolist()
    return answer


def test_vllm_and_peft_answer_alike(tmp_path: Path) -> None:
    data = export_folder(tmp_path / "export", answer="Two of the requirements can't hold together: it is a conflict.")
    run = sft_run(Backbone(model="embedded"), data, tmp_path / "run", steps=6, learning_rate=2e-3)
    folder = embedded_model()
    tokenizer: Any = AutoTokenizer.from_pretrained(run.adapter)
    encoder = Encoder(tokenizer, {})
    prompt = encoder.ids(encoder.prompt(ASKED))

    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32).eval()
    base = by_transformers(model, prompt)
    adapted = by_transformers(PeftModel.from_pretrained(model, str(run.adapter)).eval(), prompt)
    assert adapted != base
    assert "conflict" in tokenizer.decode(adapted)
    assert by_vllm(folder, run.adapter, prompt, tmp_path) == (base, adapted)
