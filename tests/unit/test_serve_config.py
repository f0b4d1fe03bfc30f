"""The shipped configurations of the service, the Serve config file, and what is wrong before anything starts."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema
from safetensors.numpy import save_file

from actors.vllm_adapters import read_adapter
from serving import app
from serving.config import ServeConfig
from synuc.layers import ConfigError, compose
from synuc.problem import Problem

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs" / "serve").glob("*.yaml"))
LOCAL = ROOT / "configs" / "serve" / "local.yaml"


def adapter(folder: Path, rank: int = 8, hidden: int = 576, layers: int = 1, value: float = 0.0) -> Path:
    """A LoRA adapter as PEFT saves one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "target_modules": ["q_proj"]}), "utf-8")
    stem = "base_model.model.model.layers.{}.self_attn.q_proj"
    tensors = {}
    for layer in range(layers):
        tensors[f"{stem.format(layer)}.lora_A.weight"] = np.full((rank, hidden), value, np.float32)
        tensors[f"{stem.format(layer)}.lora_B.weight"] = np.full((hidden, rank), value, np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def local(*overrides: str) -> ServeConfig:
    return compose(ServeConfig, [LOCAL], overrides)


def test_there_are_shipped_ones() -> None:
    assert {file.name for file in CONFIGS} >= {"local.yaml", "cluster.yaml"}


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_shipped_config_loads(file: Path) -> None:
    config = compose(ServeConfig, [file])
    assert config.detector.replicas.in_flight <= config.detector.engine.max_in_flight or (
        config.detector.replicas.least == config.detector.replicas.most
    )
    # All dialogues of one call find a place in the queue of one gateway.
    assert config.detector.queue // config.gateways >= config.limits.dialogues


def test_the_local_one_needs_nothing() -> None:
    app.check(local("port=0"))


def test_the_serve_file_is_one_and_its_args_are_those_of_the_cluster() -> None:
    deploy = ServeDeploySchema.model_validate(yaml.safe_load((ROOT / "cluster" / "serve.yaml").read_text("utf-8")))
    (application,) = deploy.applications
    module, _, name = application.import_path.partition(":")
    assert (module, getattr(app, name)) == ("serving.app", app.build)
    config = compose(ServeConfig, [], over={"args": application.args})
    shipped = compose(ServeConfig, [ROOT / "configs" / "serve" / "cluster.yaml"])
    assert config == shipped.model_copy(update={"host": config.host, "port": config.port})
    (detector,) = application.deployments
    assert detector.name == app.Detectors.name
    assert isinstance(detector.user_config, dict)
    assert detector.user_config["adapters"] == {name: str(path) for name, path in config.detector.adapters.items()}


def test_an_unknown_key_of_the_args_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"args: unknown key detector\.que; did you mean detector\.queue\?"):
        app.build({"detector": {"engine": {"kind": "vllm", "model": "embedded"}, "que": 3}})


def test_a_default_that_is_none_of_the_adapters() -> None:
    with pytest.raises(ConfigError, match="default=b is none of the adapters: a"):
        local("detector.adapters={a: /a}", "detector.default=b")


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8080/v1",
        "localhost:8080",
        "ftp://a/v1",
        "http://",
        "http://me:secret@a/v1",
        "https://a/v1?api-version=1",
    ],
)
def test_an_upstream_that_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match=r"upstream\.base_url: .*give http\(s\)://HOST/PATH"):
        local(f"upstream.base_url='{url}'")


def test_an_adapter_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert local("detector.adapters={a: ~/a}").detector.adapters == {"a": Path("/home/me/a")}


def problem(*overrides: str) -> str:
    with pytest.raises(Problem) as caught:
        app.check(local("port=0", *overrides))
    return str(caught.value)


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"can't listen on 127.0.0.1:{port} (Address already in use)" in problem(f"port={port}")
    app.check(local(f"port={port}"))


def test_a_host_that_is_not_this_machine() -> None:
    assert "can't listen on 192.0.2.1:8123 (Cannot assign" in problem("host=192.0.2.1", "port=8123")


def test_a_missing_model(tmp_path: Path) -> None:
    assert f"engine.model={tmp_path / 'none'}: no such folder" in problem(f"detector.engine.model={tmp_path / 'none'}")


def test_a_folder_without_an_adapter(tmp_path: Path) -> None:
    says = problem(f"detector.adapters={{mine: {tmp_path}}}")
    assert says.startswith(f"detector.adapters.mine={tmp_path}: no LoRA adapter (")
    assert "adapter_config.json" in says


@pytest.mark.parametrize(
    ("variable", "setting", "says"),
    [
        ("SYNUC_TEST_KEYS", "api_keys_env=SYNUC_TEST_KEYS", "variable SYNUC_TEST_KEYS holds no key"),
        (
            "SYNUC_TEST_UPSTREAM",
            "upstream={base_url: 'http://127.0.0.1:1/v1', api_key_env: SYNUC_TEST_UPSTREAM}",
            "set the environment variable SYNUC_TEST_UPSTREAM",
        ),
    ],
)
def test_a_missing_key(monkeypatch: pytest.MonkeyPatch, variable: str, setting: str, says: str) -> None:
    monkeypatch.delenv(variable, raising=False)
    assert says in problem(setting)
    monkeypatch.setenv(variable, "sk-1")
    app.check(local("port=0", setting))


def test_a_missing_engine_is_one_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("detector: {mode: fast}\n", "utf-8")
    with pytest.raises(ConfigError, match=r"detector\.engine: Field required"):
        compose(ServeConfig, [file])


def test_the_version_of_an_adapter_is_that_of_its_weights(tmp_path: Path) -> None:
    one, two, same = (adapter(tmp_path / name, value=value) for name, value in (("a", 0.0), ("b", 0.5), ("c", 0.0)))
    first = read_adapter(one, "adapter a")
    assert (first.rank, first.hidden, first.layers, first.folder) == (8, 576, 1, one)
    assert len(first.version) == 16
    assert read_adapter(two, "adapter b").version != first.version == read_adapter(same, "adapter c").version


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "adapter_model.safetensors"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"oops"), "header"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "adapter_config.json lacks 'r'"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "no LoRA adapter"),
        (lambda folder: (folder / "adapter_config.json").write_text('{"r": 1024}'), "ranks up to 512, not 1024"),
    ],
)
def test_a_spoilt_adapter(tmp_path: Path, spoil: Any, says: str) -> None:
    folder = adapter(tmp_path / "a")
    spoil(folder)
    with pytest.raises(Problem) as caught:
        read_adapter(folder, "adapter a")
    assert f"adapter a={folder}: " in str(caught.value)
    assert says in str(caught.value)


def test_addresses_are_those_to_click_on() -> None:
    config = local("host=0.0.0.0", "port=8123")
    assert "http://127.0.0.1:8123/" in app.addresses(config)[0]
    assert "set upstream.base_url" in app.addresses(config)[2]
    guarded = app.addresses(local("upstream.base_url=http://127.0.0.1:1/v1"))
    assert "http://127.0.0.1:8000/v1" in guarded[2]


def test_detectors_scale_between_their_bounds() -> None:
    assert app.scaling(local().detector) == {"num_replicas": 1}
    auto = app.scaling(local("detector.replicas={least: 0, most: 4, in_flight: 99}").detector)["autoscaling_config"]
    assert (auto.min_replicas, auto.max_replicas, auto.target_ongoing_requests) == (0, 4, 16)


def test_detectors_take_gpus_where_there_are_some_and_share_the_cpus_elsewhere() -> None:
    one = local().detector
    assert app.resources(one, [{"CPU": 2.0}]) == {"num_cpus": 2}
    assert app.resources(one, [{"CPU": 4.0}, {"CPU": 8.0, "GPU": 2.0}]) == {"num_cpus": 1, "num_gpus": 1}
    two = local("detector.engine.tensor_parallel_size=2", "detector.replicas={least: 1, most: 4}").detector
    assert app.resources(two, [{"CPU": 8.0, "GPU": 2.0}]) == {"num_cpus": 1, "num_gpus": 2}
    assert app.resources(two, [{"CPU": 8.0}]) == {"num_cpus": 2}
    assert app.resources(two, [{"CPU": 2.0}]) == {"num_cpus": 1}
    assert app.resources(one, [{"CPU": 4.0}, {"CPU": 4.0}]) == {"num_cpus": 4}


def test_why_a_start_failed_is_said_in_a_sentence() -> None:
    report = (
        "Deploying application synuc failed\nTraceback (most recent call last):\n  File x\n"
        "actors.engine.EngineUnavailable: vLLM can't start embedded: no memory\n\n(ServeReplica pid=3) more"
    )
    assert app.reason(report) == "vLLM can't start embedded: no memory"
    assert app.reason("a\n  b \n\n").startswith("b (Ray's logs")
