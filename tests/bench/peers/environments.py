"""The peers' virtual environments, each with exactly what its file in requirements/peers says.

Such a file is what `uv pip compile` makes of the packages that its first line names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.bench.ours import ROOT

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CURATOR_DISABLE_CACHE": "1",
    "CURATOR_DISABLE_RICH_DISPLAY": "1",
    "TELEMETRY_ENABLED": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NEMO_TELEMETRY_ENABLED": "false",
    "OPENAI_API_KEY": "EMPTY",
}
"""No telemetry, no look-ups in the net: they cost time, and a measurement mustn't hang on them."""


class NoEnvironment(Exception):
    """The peer's packages can't be installed; the message says why."""


def interpreter(peer: str) -> Path:
    """The Python of a peer's environment, made or brought up to date.

    Raises:
        NoEnvironment: with the last that uv said.
    """
    uv = Path(sys.executable).with_name("uv")
    folder = ROOT / ".venv-peers" / peer
    python = folder / "bin" / "python"
    steps: list[list[str | Path]] = [
        [uv, "pip", "sync", "--quiet", "--python", python, ROOT / "requirements" / "peers" / f"{peer}.txt"]
    ]
    if not python.exists():
        steps.insert(0, [uv, "venv", "--quiet", "--python", sys.executable, folder])
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoEnvironment((done.stderr or done.stdout).strip())
    return python


def environment(home: Path) -> dict[str, str]:
    """The environment variables of a peer's process, which keeps its caches in `home`.

    Two peers count tokens with tiktoken, which would fetch its table; a package of curator's has it.
    """
    tables = (ROOT / ".venv-peers" / "curator").glob("lib/*/site-packages/litellm/litellm_core_utils/tokenizers")
    found = {**os.environ, **QUIET, "HOME": str(home), "PYTHONPATH": str(ROOT)}
    if folder := next(tables, None):
        found["TIKTOKEN_CACHE_DIR"] = str(folder)
    return found
