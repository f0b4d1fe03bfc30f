"""GRPO's answers from vLLM beside the training, which gets each step's LoRA weights as a new adapter.

Unlike TRL's own way to vLLM it needs no GPU, and never copies the backbone. No step meets the prefix cache of another:
every loading of an adapter has a key of its own (`actors.vllm_adapters`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from actors.engine import Completion
from actors.vllm_engine import InProcessVllm
from synuc.config import VllmEngine
from synuc.types import LLMRequest, Spoken
from training.config import Backbone, Rollout
from training.data import Encoder, Messages

POLICY = "policy"
T = TypeVar("T")


class AdapterRollouts:
    """TRL's `rollout_func` of one training worker, with an engine of its own that starts at the first step.

    `max_prompt` is the longest prompt in tokens, `answers` how many are sampled at once, `rank` that of the LoRA
    adapter, which is written to `scratch` at every step.
    """

    def __init__(
        self,
        backbone: Backbone,
        rollout: Rollout,
        encoder: Encoder,
        *,
        max_prompt: int,
        answers: int,
        rank: int,
        scratch: Path,
    ) -> None:
        self._rollout = rollout
        self._encoder = encoder
        self._folder = scratch / "policy"
        self._engine = InProcessVllm(
            VllmEngine(
                kind="vllm",
                model=backbone.model,
                dtype=backbone.dtype,
                max_model_len=max_prompt + rollout.max_tokens,
                max_in_flight=answers,
                max_adapters=1,
                max_adapter_rank=rank,
                gpu_memory_utilization=rollout.gpu_memory_utilization,
            )
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def __call__(self, prompts: Sequence[Messages], trainer: Any) -> dict[str, Any]:
        """One answer to each prompt by the trainer's present weights, as token ids.

        TRL repeats a prompt for each of its answers.
        """
        trainer.accelerator.unwrap_model(trainer.model).save_pretrained(self._folder)
        self._wait(self._engine.add_adapter(POLICY, self._folder))
        answers = self._wait(self._sampled([self._encoder.messages(prompt) for prompt in prompts]))
        return {
            "prompt_ids": [self._encoder.ids(self._encoder.prompt(prompt)) for prompt in prompts],
            "completion_ids": [list(answer.tokens) for answer in answers],
            "logprobs": None,
        }

    def close(self) -> None:
        """Stop the engine's processes."""
        self._wait(self._engine.close())

    async def _sampled(self, prompts: Sequence[Messages]) -> list[Completion]:
        settings = (Spoken, self._rollout.max_tokens, self._rollout.temperature)
        requests = [
            LLMRequest("rollout", "model", str(n), tuple(prompt), *settings, adapter=POLICY)
            for n, prompt in enumerate(prompts)
        ]
        return await asyncio.gather(*(self._engine.complete(request, 0) for request in requests))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
