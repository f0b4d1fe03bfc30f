"""LoRA adapters by name in one vLLM engine: loaded, replaced and removed while it answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from actors.engine import EngineDead, EngineUnavailable

WEIGHTS = "adapter_model.safetensors"
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The LoRA ranks that vLLM has room for; an adapter takes the next larger one."""

OWN = 1
"""The number of the engine's own adapter in vLLM; those by name are counted from the next."""

_READS_HIDDEN = re.compile(r"\.layers\.(\d+)\.(?:\w+\.)*(?:q_proj|k_proj|v_proj|gate_proj|up_proj)\.lora_A\.")


@dataclass(frozen=True)
class AdapterFiles:
    """What the files of an adapter say. `version`: 16 hex digits of the SHA-256 of its weights.

    `hidden` is the hidden size of the model that it was trained on, `layers` are as many as it needs; None and 0 where
    its modules don't tell.
    """

    folder: Path
    version: str
    rank: int
    hidden: int | None
    layers: int


def read_adapter(folder: Path, setting: str) -> AdapterFiles:
    """What is in `folder`, which the configuration names in `setting`.

    Raises:
        EngineUnavailable: there is no LoRA adapter that vLLM could load.
    """
    from safetensors import SafetensorError, safe_open

    weights = folder / WEIGHTS
    try:
        rank = int(json.loads((folder / "adapter_config.json").read_text("utf-8"))["r"])
        with weights.open("rb") as file:
            version = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        with safe_open(weights, framework="numpy") as tensors:
            shapes = {key: tensors.get_slice(key).get_shape() for key in tensors.keys()}  # noqa: SIM118
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = f"adapter_config.json lacks {error}" if isinstance(error, KeyError) else error
        raise EngineUnavailable(
            f"{setting}={folder}: no LoRA adapter ({reason}); name a folder that PEFT saved"
        ) from None
    room_for(rank, f"{setting}={folder}")
    found = [(int(match[1]), shape[1]) for key, shape in shapes.items() if (match := _READS_HIDDEN.search(key))]
    return AdapterFiles(
        folder=folder.resolve(),
        version=version,
        rank=rank,
        hidden=found[0][1] if found else None,
        layers=max((layer + 1 for layer, _ in found), default=0),
    )


def room_for(rank: int, setting: str) -> int:
    """The rank that vLLM reserves for an adapter of `rank`. Raises EngineUnavailable if it is too large."""
    for room in RANKS:
        if rank <= room:
            return room
    raise EngineUnavailable(f"{setting}: vLLM takes ranks up to {RANKS[-1]}, not {rank}")


@dataclass(eq=False)
class Adapter:
    """One loading of an adapter. `key` names it and no other; `lora` is vLLM's request for it, None for the model."""

    key: str
    version: str
    lora: Any
    users: int = 0
    unused: asyncio.Event = field(default_factory=asyncio.Event)


class Adapters:
    """The adapters of one engine, at most `room` names of at most rank `rank`.

    A name can be loaded again: whoever comes afterwards gets the new weights, whoever holds the old ones keeps them
    until they let go, and then they are removed from the engine.
    """

    def __init__(self, room: int, rank: int) -> None:
        self._room = room
        self._rank = rank
        self._named: dict[str, Adapter] = {}
        self._loaded: dict[str, Adapter] = {}
        self._numbers = count(OWN + 1)
        self._lock = asyncio.Lock()

    def own(self, version: str, lora: Any) -> None:
        """What the empty name stands for: the engine's own adapter, or the model itself."""
        self._named[""] = self._loaded[""] = Adapter("", version, lora)

    @property
    def versions(self) -> dict[str, str]:
        """The version of every name."""
        return {name: adapter.version for name, adapter in self._named.items()}

    def held(self, name: str) -> AbstractContextManager[Adapter]:
        """The adapter of a name, or of a key, which stays loaded for the length of the block.

        Raises:
            KeyError: there is none.
        """
        return self._held(self._named.get(name) or self._loaded[name])

    @contextmanager
    def _held(self, adapter: Adapter) -> Iterator[Adapter]:
        adapter.users += 1
        adapter.unused.clear()
        try:
            yield adapter
        finally:
            adapter.users -= 1
            if not adapter.users:
                adapter.unused.set()

    async def load(self, llm: Any, name: str, files: AdapterFiles) -> None:
        """Load an adapter, in place of what has its name; returns when nobody holds the old one any more.

        Raises:
            EngineUnavailable: it doesn't fit the engine, or there is no room. What was there stays.
            EngineDead: the engine died.
        """
        async with self._lock:
            self._check_fit(llm, name, files)
            number = next(self._numbers)
            # vLLM finds weights by the number, but its prefix cache by name and path.
            key = f"{name}#{number}"
            new = Adapter(key, files.version, await _added(llm, name, key, number, files.folder))
            old = self._named.get(name)
            self._named[name] = self._loaded[key] = new
            if old is not None:
                await self._drop(llm, old)

    async def unload(self, llm: Any, name: str) -> None:
        """Take a name away; returns when nobody holds its adapter any more. Raises KeyError: there is none."""
        async with self._lock:
            await self._drop(llm, self._named.pop(name))

    def _check_fit(self, llm: Any, name: str, files: AdapterFiles) -> None:
        where = f"adapter {name}={files.folder}"
        if name not in self._named and len(self._named.keys() - {""}) >= self._room:
            raise EngineUnavailable(
                f"{where}: there is room for {self._room} adapters; remove one or raise engine.max_adapters"
            )
        if files.rank > self._rank:
            raise EngineUnavailable(
                f"{where}: its rank {files.rank} is more than the engine has room for; "
                f"raise engine.max_adapter_rank={self._rank}"
            )
        # vLLM would take the weights of a smaller model without a word.
        model = llm.model_config.hf_text_config
        if files.hidden not in (None, model.hidden_size) or files.layers > model.num_hidden_layers:
            raise EngineUnavailable(
                f"{where}: it was trained on another model (hidden size {files.hidden}, {files.layers} layers; "
                f"the engine's has {model.hidden_size} and {model.num_hidden_layers})"
            )

    async def _drop(self, llm: Any, adapter: Adapter) -> None:
        if adapter.users:
            await adapter.unused.wait()
        del self._loaded[adapter.key]
        await llm.remove_lora(adapter.lora.lora_int_id)


async def _added(llm: Any, name: str, key: str, number: int, folder: Path) -> Any:
    from vllm.lora.request import LoRARequest

    lora = LoRARequest(key, number, str(folder))
    try:
        await llm.add_lora(lora)
    except Exception as error:
        if llm.errored:
            raise EngineDead(f"the vLLM engine died while it loaded {folder}") from None
        with suppress(Exception):
            await llm.remove_lora(number)
        raise EngineUnavailable(f"adapter {name}={folder}: vLLM can't load it: {str(error)[:300]}") from None
    return lora
