"""What `--model` and `--judge` mean, and what of an engine may not change while an evaluation is continued."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.engine import EngineUnavailable
from eval.config import EvalRun, Settings, engine_of
from synuc.config import OpenAIEngine, VllmEngine
from synuc.layers import ConfigError
from tests.unit.test_serve_config import adapter


def snapshot(engine: VllmEngine | OpenAIEngine) -> object:
    return EvalRun(command=(), settings=Settings(), engines={"model": engine}).engines_snapshot()["model"]


def test_an_endpoint_is_a_model_and_a_url() -> None:
    engine = engine_of("org/model@http://127.0.0.1:8000/v1", {"max_in_flight": 3})
    assert isinstance(engine, OpenAIEngine)
    assert (engine.model, engine.base_url, engine.max_in_flight) == ("org/model", "http://127.0.0.1:8000/v1", 3)
    dated = engine_of("model@2026-01@https://a.example/v1", {})
    assert isinstance(dated, OpenAIEngine)
    assert (dated.model, dated.base_url) == ("model@2026-01", "https://a.example/v1")


@pytest.mark.parametrize("name", ["", " ", "m@localhost:8000/v1", "m@htp://x", "@http://x/v1", "http://x/v1"])
def test_a_mistyped_endpoint_is_no_model_for_vllm(name: str) -> None:
    with pytest.raises(ConfigError, match="names no model: write MODEL@http://"):
        engine_of(name, {})


def test_a_folder_may_be_named_with_an_at(tmp_path: Path) -> None:
    folder = tmp_path / "model@2"
    folder.mkdir()
    engine = engine_of(str(folder), {})
    assert isinstance(engine, VllmEngine)
    assert engine.model == str(folder)


def test_a_file_gives_its_engine_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("seeds: {limit: 3}\nengine: {kind: vllm, model: embedded}\n")
    assert engine_of(str(file), {"max_model_len": 512}) == VllmEngine(kind="vllm", model="embedded", max_model_len=512)
    file.write_text("engine: {kind: openai, modle: x}\n")
    with pytest.raises(ConfigError, match=r"unknown key engine\.modle; did you mean engine\.model\?"):
        engine_of(str(file), {})


@pytest.mark.parametrize("text", ["method: {tau: 80}\n", "engine:\n", "engine: {}\n"])
def test_a_file_without_an_engine_says_so(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="engine is missing: the model to ask"):
        engine_of(str(file), {})
    with pytest.raises(ConfigError, match="engine"):
        engine_of(str(file), {"max_in_flight": 3})


def test_an_adapter_is_of_vllm_and_known_by_its_weights(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an endpoint serves adapters under names of their own"):
        engine_of("m@http://x/v1", {}, tmp_path)
    engine = engine_of("embedded", {}, tmp_path)
    with pytest.raises(EngineUnavailable, match="no LoRA adapter"):
        snapshot(engine)
    adapter(tmp_path)
    before = snapshot(engine)
    assert snapshot(engine) == before
    adapter(tmp_path, value=0.5)
    assert snapshot(engine) != before


def test_thinking_that_is_turned_off_makes_another_model() -> None:
    plain = engine_of("m@http://x/v1", {"max_in_flight": 3})
    off = engine_of("m@http://x/v1", {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}})
    assert snapshot(plain) == snapshot(engine_of("m@http://x/v1", {"timeout_s": 5}))
    assert snapshot(plain) != snapshot(off)
