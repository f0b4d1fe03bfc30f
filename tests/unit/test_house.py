"""The order of the house: which folder may import which, and that the door opens fast."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("synuc", "actors", "pipelines", "training", "eval", "serving", "review", "experiments", "cluster")
# Arrows point one way: a folder may import those on its right. `cluster` knows none of the jobs.
MAY_IMPORT = {
    "synuc": {"synuc"},
    "cluster": {"cluster", "synuc"},
    "actors": {"actors", "synuc"},
    "pipelines": {"pipelines", "actors", "cluster", "synuc"},
    "training": {"training", "eval", "actors", "cluster", "synuc"},
    "eval": {"eval", "actors", "cluster", "synuc"},
    "serving": {"serving", "actors", "cluster", "synuc"},
    "review": {"review", "eval", "synuc"},
    "experiments": {"experiments", "pipelines", "training", "eval", "cluster", "synuc"},
}
HEAVY = {"ray", "torch", "vllm", "transformers", "openai", "httpx", "aiohttp", "requests", "pyarrow"}


def imported(file: Path) -> set[str]:
    tree = ast.parse(file.read_text("utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("folder", FOLDERS)
def test_arrows_point_one_way(folder: str) -> None:
    for file in (ROOT / folder).rglob("*.py"):
        if file.name.startswith("cli"):  # the door imports every job, inside its commands
            continue
        assert imported(file) & set(FOLDERS) <= MAY_IMPORT[folder], file


def test_the_method_does_no_io_of_its_own() -> None:
    for file in (ROOT / "synuc").rglob("*.py"):
        assert not imported(file) & HEAVY, file


def test_ray_is_started_in_one_place() -> None:
    callers = [
        file.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        if "ray.init(" in file.read_text("utf-8")
    ]
    assert callers == ["cluster/connect.py"]


def test_the_door_imports_no_job() -> None:
    script = "import sys, synuc.cli; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not set(loaded) & (HEAVY | {"pydantic", "actors", "pipelines", "training", "eval", "serving", "cluster"})
