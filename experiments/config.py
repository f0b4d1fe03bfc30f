"""An experiment: which cells it has, and what each is made with. Every file of `configs/experiments/` is one.

A cell is a variant with a training and a seed. What its steps are made with stands in layers, later over earlier:
`common`, then the variant's own, then `everywhere`. A scale of `scales` is laid over the whole file, so that one file
describes the experiment at full size and at toy size.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, Field, model_validator

from eval.report.published import names as published_names
from synuc.formatting import Retention
from synuc.layers import ConfigError, Section, compose

Scale = Literal["toy", "full"]
SCALES: tuple[Scale, ...] = get_args(Scale)

Training = Literal["base", "sft", "grpo", "grpo_attribution"]
TRAININGS: dict[Training, str] = {
    "base": "Base",
    "sft": "SFT",
    "grpo": "DR-GRPO",
    "grpo_attribution": "DR-GRPO†",
}
"""How far a cell's model is trained, as the paper writes it: not at all, by SFT, then by DR-GRPO without or with the
constraint-attribution reward.
"""

Evaluation = Literal["uc", "states", "pairwise", "quality"]
"""Classification, decision states, whose reasoning is closer to the gold rationale, and the quality of the data."""


class Layer(Section):
    """A part of what one kind of step is configured with."""

    files: tuple[Path, ...] = Field((), description="YAML files, later ones over earlier ones, as --config takes them")
    settings: dict[str, Any] = Field({}, description="values over those of all files")


class Recipe(Section):
    """What the steps of cells are made with. What is None is left to the layers below."""

    generator: Path | None = Field(None, description="YAML file with the `engine` that synthesises")
    backbone: Path | None = Field(None, description="YAML file that names the backbone")
    model: str | None = Field(None, description="what the training `base` asks, as --model names it; else the backbone")
    retention: Retention | None = Field(None, description="assistant turns in training and evaluation")
    trainings: tuple[Training, ...] | None = Field(None, min_length=1)
    synthesize: Layer = Layer()
    sft: Layer = Layer()
    grpo: Layer = Layer()
    evaluate: Layer = Layer()


class Quoted(Section):
    """The published table that belongs beside an evaluation."""

    table: str = Field(description="its name in eval/published/, e.g. synuc_table6")
    rows: dict[str, str] = Field(
        {}, description="columns and what they hold in a cell's row, e.g. {Retrieval: '{variant}', Training: SFT}"
    )

    @model_validator(mode="after")
    def _exists(self) -> Self:
        if self.table not in published_names():
            raise ValueError(f"there is no eval/published/{self.table}.yaml")
        return self


class Against(Section):
    """What all cells are compared with in pairs, seed by seed, and who judges."""

    variant: str
    training: Training
    judge: str = Field(description="a strong model, as --judge names it")


class Experiment(Section):
    """One experiment at one scale. Paths are relative to the working directory."""

    title: str
    reproduces: str = Field(description="the table or figure of the paper, or what else it is for")
    under: tuple[Path, ...] = Field((), description="files that this one is laid over")
    scales: dict[Scale, dict[str, Any]] = Field(description="what is laid over all of this at a scale")
    common: Recipe = Recipe()
    variants: dict[str, Recipe] = Field(min_length=1, description="in the order of the table")
    everywhere: Recipe = Field(Recipe(), description="laid over every variant")
    seeds: tuple[int, ...] = Field(min_length=1, description="one training of every variant for each")
    bench: tuple[Path, ...] = Field((), description="benchmark files, or folders of them")
    evaluations: tuple[Evaluation, ...] = Field(("uc",), min_length=1)
    against: Against | None = Field(None, description="for `pairwise`")
    published: dict[Evaluation, Quoted] = Field({}, description="what stands beside an evaluation's figures")
    address: str | None = Field(None, description="Ray address; none: RAY_ADDRESS if set, else this machine")
    concurrent: int | None = Field(None, ge=1, description="most steps at a time; none: one for each GPU, at least one")

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if ("pairwise" in self.evaluations) != (self.against is not None):
            raise ValueError("the evaluation `pairwise` and `against`, what all are compared with, go together")
        if self.against and self.against.variant not in self.variants:
            raise ValueError(f"against.variant {self.against.variant!r} is none of {', '.join(self.variants)}")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds has one twice")
        if set(self.evaluations) - {"quality"} and not self.bench:
            raise ValueError("say in bench which items are asked about")
        return self


class _Head(BaseModel):
    """What has to be known of a file before its layers can be composed."""

    under: tuple[Path, ...] = ()
    scales: dict[str, dict[str, Any]] = {}


def load(file: Path, scale: Scale, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment of a file at a scale; `overrides` (`key=value`) win over both.

    Raises:
        ConfigError: with the key, where it came from and what would do.
    """
    files = [*compose(_Head, [file]).under, file]
    scales = compose(_Head, files).scales
    if scale not in scales:
        raise ConfigError(f"{file} has no scale {scale}; it has {', '.join(scales) or 'none'}")
    return compose(Experiment, files, overrides, over={f"{file}, scale {scale}": scales[scale]})


def shipped(folder: Path) -> list[Path]:
    """The experiment files in a folder, without those of its subfolders, which only lie under others.

    Raises:
        ConfigError: there are none.
    """
    if not (files := sorted(folder.glob("*.yaml"))):
        raise ConfigError(f"{folder} holds no experiment; the shipped ones are in configs/experiments of the checkout")
    return files
