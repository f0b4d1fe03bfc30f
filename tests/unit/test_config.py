"""Configurations: composition, overrides, errors that say what would do, and what makes two runs the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from synuc.config import (
    Method,
    OpenAIEngine,
    RunConfig,
    VllmEngine,
    load,
    load_seeds,
    method_snapshot,
)
from synuc.layers import ConfigError, differences, fingerprint
from synuc.types import Label

CONFIGS = Path(__file__).parents[2] / "configs"
BASES = sorted(p for p in CONFIGS.glob("*.yaml") if p.name not in ("bench.yaml", "demo.yaml"))  # see test_mining.py
LAYERS = [CONFIGS / "demo.yaml", *sorted((CONFIGS / "ablations").glob("*.yaml"))]
ENGINE = "engine: {kind: vllm, model: m}\n"

Write = Callable[..., list[Path]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes config files `0.yaml`, `1.yaml`, ... and gives their paths."""

    def files(*texts: str) -> list[Path]:
        paths = [tmp_path / f"{n}.yaml" for n in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, "utf-8")
        return paths

    return files


def error(files: list[Path], *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(files, overrides)
    return str(caught.value)


# Composition


def test_the_defaults_are_the_papers(write: Write) -> None:
    method = load(write(ENGINE)).method
    assert (method.alpha, method.tau, method.k) == (0.10, 80, 3)
    assert method.labels == (Label.ND, Label.ER, Label.IC)
    assert method.task_filter
    assert method.memory
    assert method.trajectory_update
    assert method.confidence_filter
    assert method.constraint_verifier


def test_later_files_win_key_by_key(write: Write) -> None:
    config = load(
        write(
            ENGINE + "method: {tau: 70, k: 2}\nseeds: {paths: [a.jsonl, b.jsonl]}",
            "method: {tau: 75}\nengine: {max_in_flight: 3}",
            "seeds: {paths: [c.jsonl]}",
        )
    )
    assert (config.method.tau, config.method.k) == (75, 2)
    assert isinstance(config.engine, VllmEngine)
    assert (config.engine.model, config.engine.max_in_flight) == ("m", 3)
    # Lists are replaced, not joined.
    assert config.seeds.paths == ("c.jsonl",)


def test_overrides_win_over_files_and_later_ones_over_earlier_ones(write: Write) -> None:
    files = write(ENGINE + "method: {tau: 70}")
    config = load(
        files,
        [
            "method.tau=90",
            "method.tau=95",
            "engine.price.prompt=0.5",
            "method.labels=[IC]",
            "method.memory=false",
            "roles.verifier={kind: openai, model: g}",
            "cluster.address=ray://head:10001",
            "seeds.limit=null",
        ],
    )
    assert (config.method.tau, config.method.labels, config.method.memory) == (95, (Label.IC,), False)
    assert config.engine.price.prompt == 0.5
    assert config.engine_of("verifier").kind == "openai"
    assert config.engine_of("generator") is config.engine_of("curator") is config.engine
    assert (config.cluster.address, config.seeds.limit) == ("ray://head:10001", None)


def test_overrides_alone_make_a_config() -> None:
    config = load([], ["engine.kind=openai", "engine.model=gpt", "engine.base_url=http://a/v1?x=1"])
    assert isinstance(config.engine, OpenAIEngine)
    assert config.engine.base_url == "http://a/v1?x=1"


def test_another_kind_of_engine_replaces_the_engine(write: Write) -> None:
    vllm = "engine: {kind: vllm, model: m, enforce_eager: true, price: {prompt: 3}}\n"
    (first, second) = write(vllm, "engine: {kind: openai, model: g}")
    config = load([first, second])
    assert config.engine == OpenAIEngine(kind="openai", model="g")
    assert load([second, first]).engine.price.prompt == 3
    # Not even the model's name goes over to the other kind.
    assert error([first], "engine.kind=openai").endswith("engine.model: Field required")


def test_the_same_kind_of_engine_is_merged(write: Write) -> None:
    engine = load(write(ENGINE, "engine: {kind: vllm, dtype: float32}")).engine
    assert engine == VllmEngine(kind="vllm", model="m", dtype="float32")


def test_another_kind_of_engine_replaces_a_roles_engine_only(write: Write) -> None:
    config = load(
        write(
            ENGINE + "roles: {generator: {kind: vllm, model: a, dtype: float32}, verifier: {kind: vllm, model: b}}",
            "roles: {generator: {kind: openai, model: g}}",
        )
    )
    assert config.engine_of("generator") == OpenAIEngine(kind="openai", model="g")
    assert config.engine_of("verifier") == VllmEngine(kind="vllm", model="b")
    assert config.engine == VllmEngine(kind="vllm", model="m")


@pytest.mark.parametrize("file", BASES, ids=lambda p: p.stem)
def test_every_shipped_config_loads(file: Path) -> None:
    load([file])


@pytest.mark.parametrize("layer", LAYERS, ids=lambda p: p.stem)
def test_every_shipped_layer_changes_something(layer: Path) -> None:
    base, changed = load([CONFIGS / "local.yaml"]), load([CONFIGS / "local.yaml", layer])
    changes = differences(base.method.model_dump(mode="json"), changed.method.model_dump(mode="json"))
    if layer.parent.name == "ablations":
        switch = layer.stem.removeprefix("no-").replace("-", "_")
        assert changes == [f"{switch}: True -> False"]
    else:
        assert changes


def test_every_ablation_has_its_file() -> None:
    switches = {name for name, info in Method.model_fields.items() if (info.description or "").startswith("ablation")}
    assert {p.stem.removeprefix("no-").replace("-", "_") for p in LAYERS[1:]} == switches
    assert len(switches) == 5


# Errors


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("method: {tua: 3}", "method.tua", "method.tau"),
        ("methd: {tau: 3}", "methd", "method"),
        ("seeds: {path: [a]}", "seeds.path", "seeds.paths"),
        ("engine: {max_inflight: 3}", "engine.max_inflight", "engine.max_in_flight"),
        ("engine: {price: {promt: 3}}", "engine.price.promt", "engine.price.prompt"),
        ("engine: {kind: openai, model: g, base_ulr: x}", "engine.base_ulr", "engine.base_url"),
        ("roles: {curator: {kind: vllm, modle: m}}", "roles.curator.modle", "roles.curator.model"),
        ("cluster: {worker: 3}", "cluster.worker", "cluster.workers"),
    ],
)
def test_an_unknown_key_names_itself_its_file_and_the_nearest_key(
    write: Write, text: str, key: str, nearest: str
) -> None:
    files = write(ENGINE, text, "method: {k: 2}")
    assert f"{files[1]}: unknown key {key}; did you mean {nearest}?" in error(files).splitlines()


def test_an_unknown_key_like_no_other_has_no_neighbour(write: Write) -> None:
    files = write(ENGINE, "zzzzzzz: 1")
    assert error(files) == f"{files[1]}: unknown key zzzzzzz"


def test_an_unknown_key_of_an_override_names_the_override(write: Write) -> None:
    message = error(write(ENGINE), "method.tua=3")
    assert message == "--set method.tua=3: unknown key method.tua; did you mean method.tau?"


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("method: {tau: high}", "method.tau", "(got 'high')"),
        ("method: {tau: 101}", "method.tau", "less than or equal to 100 (got 101)"),
        ("method: {alpha: -0.1}", "method.alpha", "(got -0.1)"),
        ("method: {labels: [IC, XX]}", "method.labels.1", "(got 'XX')"),
        ("method: {k: 0}", "method.k", "(got 0)"),
        ("cluster: {workers: 4, max_workers: 3}", "cluster", "max_workers=3 is less than workers=4"),
        ("method: {memory: maybe}", "method.memory", "(got 'maybe')"),
        ("method: 3", "method", "(got 3)"),
        ("seeds: {paths: a.jsonl}", "seeds.paths", "(got 'a.jsonl')"),
        ("seeds: {min_user_turns: 1}", "seeds.min_user_turns", "(got 1)"),
        ("engine: {dtype: int4}", "engine.dtype", "(got 'int4')"),
        ("engine: {kind: tgi}", "engine", "'vllm', 'openai'"),
        ("roles: {judge: {kind: vllm, model: m}}", "roles.judge", "'generator', 'verifier' or 'curator'"),
    ],
)
def test_an_ill_typed_value_names_key_file_and_value(write: Write, text: str, key: str, says: str) -> None:
    files = write(ENGINE, text)
    (line,) = error(files).splitlines()
    assert line.startswith(f"{files[1]}: {key}")
    assert says in line


def test_a_value_is_blamed_on_the_layer_that_set_it_last(write: Write) -> None:
    files = write(ENGINE + "method: {tau: 300}", "method: {k: 2}", "method: {tau: 400}")
    assert error(files).startswith(f"{files[2]}: method.tau")
    assert error(files[:2]).startswith(f"{files[0]}: method.tau")
    assert error(files, "method.tau=500").startswith("--set method.tau=500: method.tau")


def test_all_errors_are_told_at_once(write: Write) -> None:
    files = write(ENGINE + "method: {tua: 3, k: 0}\nseed: {}")
    assert len(error(files).splitlines()) == 3


def test_a_config_without_an_engine_says_where_to_get_one(write: Write) -> None:
    for files in (write("method: {tau: 3}"), write("engine: {model: m}")):
        assert "engine is missing: say which one, e.g. --config configs/local.yaml" in error(files)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert error([tmp_path / "no.yaml"]).startswith(f"{tmp_path / 'no.yaml'}: no such file")


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    assert error([tmp_path]).startswith(f"{tmp_path}: can't be read")


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe\x00", b"a: b: c", b"a: !!python/object:os.system {}"])
def test_what_is_not_yaml_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(content)
    assert error([file]).startswith(f"{file}: can't be read as YAML")


@pytest.mark.parametrize(("text", "kind"), [("- a", "list"), ("", "NoneType"), ("just words", "str")])
def test_a_config_is_a_mapping(write: Write, text: str, kind: str) -> None:
    (file,) = write(text)
    assert error([file]) == f"{file}: a config is a mapping of keys, this file holds {kind}"


@pytest.mark.parametrize("override", ["method.tau", "=3", ""])
def test_an_override_without_key_or_value_shows_the_form(write: Write, override: str) -> None:
    assert "write it as key=value" in error(write(ENGINE), override)


def test_an_override_that_is_not_yaml_is_refused(write: Write) -> None:
    assert error(write(ENGINE), "method.tau=[1").startswith("--set method.tau=[1: ")


def test_an_override_below_a_plain_value_is_refused(write: Write) -> None:
    assert "method.tau" in error(write(ENGINE + "method: {tau: 3}"), "method.tau.x=3")


def test_a_config_is_frozen(write: Write) -> None:
    config = load(write(ENGINE))
    with pytest.raises(ValidationError, match="frozen"):
        config.method = Method()  # type: ignore[misc]


def test_seeds_load_without_an_engine(write: Write) -> None:
    files = write("seeds: {limit: 3}\nmethod: {tau: 3}", "seeds: {format: lmsys}")
    seeds = load_seeds(files, ["seeds.limit=5"])
    assert (seeds.limit, seeds.format) == (5, "lmsys")
    assert load_seeds([]).limit is None
    with pytest.raises(ConfigError) as caught:
        load_seeds(files, ["seeds.limt=5"])
    assert str(caught.value) == "--set seeds.limt=5: unknown key seeds.limt; did you mean seeds.limit?"


# What makes two runs the same


def a_config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"engine": {"kind": "vllm", "model": "m"}, **sections})


def print_of(prompts_version: str = "abc", **sections: Any) -> str:
    return fingerprint(method_snapshot(a_config(**sections), prompts_version))


def test_the_fingerprint_is_stable() -> None:
    assert len(print_of()) == 16
    assert print_of() == print_of()
    assert print_of(method={"tau": 80}) == print_of()


OTHER: dict[str, Any] = {
    "labels": ["IC"],
    "alpha": 0.2,
    "tau": 81,
    "k": 4,
    "update_threshold": 11,
    "program": "baize",
    "retrieval": "bm25",
    "embedding_model": "other",
    "embedding_pooling": "mean",
    "seed": 1,
    "generator_temperature": 0.8,
    "verifier_temperature": 0.1,
    "task_filter": False,
    "memory": False,
    "trajectory_update": False,
    "confidence_filter": False,
    "constraint_verifier": False,
    "parse_attempts": 4,
}


def test_every_field_of_the_method_changes_the_fingerprint() -> None:
    assert set(OTHER) == set(Method.model_fields)
    prints = {print_of(method={name: value}) for name, value in OTHER.items()}
    assert len(prints | {print_of()}) == len(OTHER) + 1


@pytest.mark.parametrize(
    "sections",
    [
        {"seeds": {"limit": 3}},
        {"seeds": {"paths": ["a"]}},
        {"engine": {"kind": "vllm", "model": "other"}},
        {"engine": {"kind": "openai", "model": "m"}},
        {"engine": {"kind": "vllm", "model": "m", "adapter": "lora"}},
        {"roles": {"verifier": {"kind": "vllm", "model": "other"}}},
        {"prompts_version": "abd"},
    ],
)
def test_seeds_models_and_prompts_change_the_fingerprint(sections: dict[str, Any]) -> None:
    assert print_of(**sections) != print_of()


@pytest.mark.parametrize(
    "sections",
    [
        {"cluster": {"workers": 3, "address": "ray://a:1", "dialogues_in_flight": 9, "lease_s": 1.0}},
        {"engine": {"kind": "vllm", "model": "m", "max_in_flight": 3, "tensor_parallel_size": 2}},
        {"engine": {"kind": "vllm", "model": "m", "price": {"prompt": 1.0}}},
        {"roles": {"verifier": {"kind": "vllm", "model": "m", "enforce_eager": True}}},
    ],
)
def test_where_and_how_fast_it_runs_does_not_change_the_fingerprint(sections: dict[str, Any]) -> None:
    assert print_of(**sections) == print_of()


def test_differences_are_dotted_fields() -> None:
    old = method_snapshot(a_config(), "abc")
    new = method_snapshot(
        a_config(
            method={"tau": 90, "labels": ["IC"]},
            seeds={"limit": 3},
            roles={"curator": {"kind": "openai", "model": "g"}},
        ),
        "abd",
    )
    assert differences(old, new) == [
        "engines.curator.kind: vllm -> openai",
        "engines.curator.model: m -> g",
        "method.labels: ['ND', 'ER', 'IC'] -> ['IC']",
        "method.tau: 80 -> 90",
        "prompts: abc -> abd",
        "seeds.limit: None -> 3",
    ]
    assert differences(old, old) == []


def test_differences_tell_fields_that_only_one_side_has() -> None:
    assert differences({"a": {"b": 1}}, {"a": {"c": 2}, "d": {"e": 3}}) == [
        "a.b: 1 -> None",
        "a.c: None -> 2",
        "d: None -> {'e': 3}",
    ]
