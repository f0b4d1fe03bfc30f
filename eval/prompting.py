"""Renders the templates in `eval/prompts/`: what judges and untrained models are asked.

They may include the method's own templates, so that a dialogue looks the same everywhere.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

import jinja2

from synuc import prompts

FOLDER = files("eval").joinpath("prompts")


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    return prompts.environment(prompts.sources(prompts.FOLDER) | prompts.sources(FOLDER))


def render(name: str, **values: Any) -> str:
    """The template `name` (without `.md`) with its values filled in; a missing value is an error."""
    return _environment().get_template(f"{name}.md").render(**values).strip()


@lru_cache(maxsize=1)
def version() -> str:
    """Twelve hex digits over all templates that evaluations use."""
    everything = prompts.sources(prompts.FOLDER) | prompts.sources(FOLDER)
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:12]
