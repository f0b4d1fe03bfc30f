"""Configurations as layers: small YAML files that compose, and dotted overrides.

Later files win over earlier ones, key by key, and `--set` wins over all. An unknown or ill-typed key is an error that
names the key, its file and the nearest valid key. Secrets never stand in a config: an engine names the environment
variable that holds its key.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from synuc.problem import Problem


class ConfigError(Problem):
    """A configuration that can't be used; the message says which key, from where, and what would do."""


class Section(BaseModel):
    """A part of a configuration: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Config = TypeVar("Config", bound=BaseModel)


def compose(
    model: type[Config],
    files: Sequence[str | Path],
    overrides: Sequence[str] = (),
    section: str | None = None,
    over: Mapping[str, Mapping[str, Any]] | None = None,
) -> Config:
    """The `model` that `files`, in order, and then `overrides` (`a.b=value`, the value read as YAML) make together.

    With `section`, only that key of the files is read, e.g. the seeds of a configuration without its engine. `over`
    holds layers between files and overrides, by the names that errors call them.

    Raises:
        ConfigError: with the key, where it came from and what would do.
    """
    merged, came_from = _merged(files, over or {}, overrides)
    data = merged if section is None else merged.get(section, {})
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error, model, data, came_from, (section,) if section else ())) from None


def fingerprint(snapshot: Mapping[str, Any]) -> str:
    """Sixteen hex digits over a method snapshot."""
    return hashlib.sha256(json.dumps(snapshot, sort_keys=True).encode()).hexdigest()[:16]


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The dotted fields in which two snapshots differ, as `field: old -> new`."""
    lines = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {a} -> {b}")
    return lines


def _merged(
    files: Sequence[str | Path], over: Mapping[str, Mapping[str, Any]], overrides: Sequence[str]
) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """All layers as one mapping, and for every key where its value came from."""
    merged: dict[str, Any] = {}
    came_from: dict[tuple[str, ...], str] = {}
    for file in files:
        _merge(merged, _read(Path(file)), str(file), came_from, ())
    for name, layer in over.items():
        _merge(merged, layer, name, came_from, ())
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {override}: write it as key=value, e.g. --set method.tau=90")
        try:
            parsed: Any = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"--set {override}: the value can't be read as YAML; put it in quotes") from None
        for part in reversed(key.split(".")):
            parsed = {part: parsed}
        _merge(merged, parsed, f"--set {override}", came_from, ())
    return merged, came_from


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; the shipped ones are in configs/") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: can't be read as YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a config is a mapping of keys, this file holds {type(data).__name__}")
    return data


def _merge(
    into: dict[str, Any],
    new: Mapping[str, Any],
    where: str,
    came_from: dict[tuple[str, ...], str],
    at: tuple[str, ...],
) -> None:
    """Merge `new` into `into` in place. Another `kind` of engine replaces the engine instead of mixing with it."""
    if "kind" in new and into.get("kind") not in (None, new["kind"]):
        into.clear()
        for path in [path for path in came_from if path[: len(at)] == at != path]:
            del came_from[path]
    for key, value in new.items():
        path = (*at, str(key))
        came_from[path] = where
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value, where, came_from, path)
        else:
            into[key] = {} if isinstance(value, dict) else value
            if isinstance(value, dict):
                _merge(into[key], value, where, came_from, path)


def _explain(
    error: ValidationError,
    model: type[BaseModel],
    data: Mapping[str, Any],
    came_from: Mapping[tuple[str, ...], str],
    prefix: tuple[str, ...],
) -> str:
    lines = []
    for item in error.errors():
        path = (*prefix, *_path(item["loc"], data))
        where = next((came_from[path[:n]] for n in range(len(path), 0, -1) if path[:n] in came_from), "the config")
        line = ": ".join(filter(None, (where, ".".join(path), item["msg"].removeprefix("Value error, "))))
        if item["type"] == "extra_forbidden":
            keys = [".".join((*prefix, key)) for key in _valid_keys(model)]
            near = difflib.get_close_matches(".".join(path), keys, n=1, cutoff=0.3)
            line = f"{where}: unknown key {'.'.join(path)}" + (f"; did you mean {near[0]}?" if near else "")
        elif item["type"] in ("missing", "union_tag_not_found") and len(path) == len(prefix) + 1:
            field = model.model_fields.get(path[-1])
            line = f"{where}: {'.'.join(path)} is missing"
            line += f": {field.description}" if field and field.description else ""
        elif "input" in item and not isinstance(item["input"], dict):
            line += f" (got {item['input']!r})"
        lines.append(line)
    return "\n".join(lines)


def _path(location: Sequence[int | str], data: Any) -> list[str]:
    """A validation error's location as keys of the file: without the tags of unions, which no file holds."""
    parts = []
    for at, part in enumerate(location):
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            if at < len(location) - 1:
                continue
        parts.append(str(part))
    return parts


def _valid_keys(annotation: Any, prefix: str = "") -> Iterator[str]:
    """The dotted keys that a field of this type can hold; of a mapping, those of its named keys."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, info in annotation.model_fields.items():
            yield f"{prefix}{name}"
            yield from _valid_keys(info.annotation, f"{prefix}{name}.")
    elif get_origin(annotation) is dict:
        keys, value = get_args(annotation)
        for key in get_args(keys) if get_origin(keys) is Literal else ():
            yield from _valid_keys(value, f"{prefix}{key}.")
    else:
        for option in get_args(annotation):
            yield from _valid_keys(option, prefix)
