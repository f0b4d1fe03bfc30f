"""The cells of an experiment, and the steps that each of them needs.

A step is named by the hash of all that decides its result: its own settings, and the names of the steps whose results
it takes. So cells share what they have in common, and a changed setting gives new names to just what depends on it.
Where a step runs and what it writes on its way isn't part of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel

from eval import prompting
from eval.config import EvalRun, Settings, engine_of
from experiments.config import TRAININGS, Against, Evaluation, Experiment, Layer, Recipe, Training
from experiments.digests import bench_digest, bench_files, seed_files
from pipelines.programs import prompts_version
from synuc.config import AnyEngine, BatchEngine, OpenAIEngine, RunConfig, VllmEngine, method_snapshot
from synuc.formatting import Retention
from synuc.layers import Config, ConfigError, compose, fingerprint
from synuc.types import Role
from training.config import GrpoConfig, SftConfig, TrainConfig

Kind = Literal["synthesize", "export", "sft", "grpo"] | Evaluation
KINDS: tuple[Kind, ...] = ("synthesize", "export", "sft", "grpo", *get_args(Evaluation))
StepKind = Literal["sft", "grpo"]
Engine = AnyEngine
SeedFiles = Callable[[tuple[str, ...]], Mapping[str, str]]
"""What decides the seeds at some paths besides these paths."""

WITHOUT_ATTRIBUTION = {"reward": {"beta": 0.0}}
"""What the training `grpo` lays over the settings of DR-GRPO."""


@dataclass(frozen=True)
class Step:
    """A step: `identity` is what decides its result besides the steps `after` which it comes, as plain JSON.

    `settings` is what it is carried out with: a configuration of its job, the retention of an export, an `Asked` or a
    `Judged`; None where it needs nothing.
    """

    kind: Kind
    identity: Mapping[str, Any]
    after: tuple[Step, ...] = ()
    settings: Any = field(default=None, compare=False)

    @cached_property
    def name(self) -> str:
        """Its kind and sixteen hex digits: the name of its folder."""
        return f"{self.kind}-{fingerprint({**self.identity, 'after': [step.name for step in self.after]})}"

    def whole(self) -> Iterator[Step]:
        """All steps that it needs, each before those which come after it, and itself. Shared ones come repeatedly."""
        for step in self.after:
            yield from step.whole()
        yield self


@dataclass(frozen=True)
class Asked:
    """What a classification is carried out with; `model` is for an untrained one, else it is the training's."""

    model: str
    bench: tuple[str, ...]
    settings: Settings


@dataclass(frozen=True)
class Judged:
    """What a comparison in pairs is carried out with."""

    judge: str
    settings: Settings


@dataclass(frozen=True)
class Cell:
    """A variant with a training and a seed; `steps` are those whose results it shows, and those on the way."""

    variant: str
    training: Training
    seed: int
    steps: Mapping[Kind, Step]

    @property
    def name(self) -> str:
        return f"{self.variant}, {TRAININGS[self.training]}, seed {self.seed}"


def distinct(cells: Sequence[Cell]) -> list[Step]:
    """The steps of all cells, each once, before those that come after it."""
    steps = (step for cell in cells for shown in cell.steps.values() for step in shown.whole())
    return list({step.name: step for step in steps}.values())


def cells(experiment: Experiment) -> list[Cell]:
    """All cells, every variant and training once before the second seed. An untrained model has the first seed only.

    Raises:
        ConfigError: a layer can't be read, or the layers of a variant don't go together.
    """
    items = bench_digest(experiment.bench)
    read_once = cache(seed_files)  # of this plan: before the next one, files may change
    made = {name: _Variant(experiment, name, items, read_once) for name in experiment.variants}
    found = [
        Cell(name, training, seed, variant.steps(training, seed))
        for seed in experiment.seeds
        for name, variant in made.items()
        for training in variant.trainings
        if training != "base" or seed == experiment.seeds[0]
    ]
    return _paired(found, experiment.against, made) if experiment.against else found


class _Variant:
    """A variant's layers, composed once for all its cells."""

    def __init__(self, experiment: Experiment, name: str, items: str | None, seed_files: SeedFiles) -> None:
        own = {"common": experiment.common, f"variant {name}": experiment.variants[name]}
        self.experiment = experiment
        self.items = items
        self.seed_files = seed_files
        self.recipes: dict[str, Recipe] = {**own, "everywhere": experiment.everywhere}
        self.trainings: tuple[Training, ...] = self._last("trainings") or ("sft", "grpo_attribution")
        self.retention: Retention = self._last("retention") or Retention.PARTIAL
        self.ask = self._compose(Settings, "evaluate", over={"retention": {"retention": self.retention.value}})

    @cached_property
    def data(self) -> Step:
        """The synthesis."""
        config = self._compose(RunConfig, "synthesize", self._first("generator"))
        identity = method_snapshot(config, prompts_version(config.method.program))
        return Step("synthesize", {**identity, **_bodies(config), **self.seed_files(config.seeds.paths)}, (), config)

    @cached_property
    def sft(self) -> SftConfig:
        return self._compose(SftConfig, "sft", self._first("backbone"))

    @cached_property
    def grpo(self) -> dict[Training, GrpoConfig]:
        layers: dict[Training, Mapping[str, Any]] = {"grpo": WITHOUT_ATTRIBUTION, "grpo_attribution": {}}
        return {
            training: self._compose(GrpoConfig, "grpo", over={TRAININGS[training]: layer})
            for training, layer in layers.items()
        }

    def steps(self, training: Training, seed: int) -> dict[Kind, Step]:
        """The steps of a cell by their kind, but for its comparison with another."""
        evaluations = self.experiment.evaluations
        steps: dict[Kind, Step] = {}
        if training != "base" or "quality" in evaluations:
            steps["synthesize"] = self.data
        if training != "base":
            export = Step("export", {"retention": self.retention.value}, (self.data,), self.retention)
            sft = _training("sft", self.sft, seed, (export,))
            steps |= {"export": export, "sft": sft}
            if training != "sft":
                steps["grpo"] = _training("grpo", self.grpo[training], seed, (export, sft))
        if set(evaluations) - {"quality"}:
            steps["uc"] = self._asked(steps.get("grpo") or steps.get("sft"))
        if "states" in evaluations:
            steps["states"] = Step("states", {"seed": self.ask.seed}, (steps["uc"],), self.ask)
        if "quality" in evaluations:
            steps["quality"] = Step("quality", {}, (self.data,))
        return steps

    def _asked(self, trained: Step | None) -> Step:
        named = None if trained else self._last("model")
        model: str = named or self.sft.backbone.model
        identity = {
            "engine": _engine(engine_of(model, self.ask.engine), self.ask, "model"),
            "prompt": "trained" if trained else "zero_shot",
            "prompts": prompting.version(),
            "items": self.items,
            **self.ask.model_dump(mode="json", include={"fields", "retention", "temperature", "max_tokens", "seed"}),
        }
        settings = Asked(model, tuple(map(str, self.experiment.bench)), self.ask)
        return Step("uc", identity, (trained,) if trained else (), settings)

    def _first(self, key: str) -> list[Path]:
        """The file that lies under those of a layer, if a recipe names one."""
        return [path] if (path := self._last(key)) else []

    def _last(self, key: str) -> Any:
        """What the topmost recipe says that says anything."""
        return next((value for recipe in reversed(self.recipes.values()) if (value := getattr(recipe, key))), None)

    def _compose(
        self,
        model: type[Config],
        key: str,
        below: Sequence[Path] = (),
        over: Mapping[str, Mapping[str, Any]] = {},
    ) -> Config:
        layers: dict[str, Layer] = {where: getattr(recipe, key) for where, recipe in self.recipes.items()}
        files = [*below, *(file for layer in layers.values() for file in layer.files)]
        own = {f"{where}, {key}.settings": layer.settings for where, layer in layers.items()}
        return compose(model, files, over={**own, **over})


def _training(kind: StepKind, config: TrainConfig, seed: int, after: tuple[Step, ...]) -> Step:
    config = config.model_copy(update={"seed": seed})
    left_out: Any = {"cluster": True, "record": True, "start": True, "data": {"path"}}
    identity = {**config.model_dump(mode="json", exclude=left_out), "zero": config.cluster.zero}
    return Step(kind, identity, after, config)


def _paired(found: Sequence[Cell], against: Against, made: Mapping[str, _Variant]) -> list[Cell]:
    """The cells, each but those of the reference with its comparison with the reference of its seed.

    An untrained reference has one cell, with which those of all seeds are compared.
    """
    first = {cell.seed: cell for cell in found if (cell.variant, cell.training) == (against.variant, against.training)}
    if not first:
        raise ConfigError(f"against: {against.variant} has no training {against.training} in this experiment")
    settings = made[against.variant].ask
    identity = {
        "engine": _engine(engine_of(against.judge, settings.judge), settings, "judge"),
        "prompts": prompting.version(),
        "seed": settings.seed,
    }
    (only, *_) = first.values()
    paired = []
    for cell in found:
        reference = only if against.training == "base" else first[cell.seed]
        both = (reference.steps["uc"], cell.steps["uc"])
        if cell is not reference:
            comparison = Step("pairwise", identity, both, Judged(against.judge, settings))
            cell = replace(cell, steps={**cell.steps, "pairwise": comparison})
        paired.append(cell)
    return paired


def _engine(engine: Engine, settings: Settings, role: str) -> dict[str, Any]:
    """What decides the answers of an engine without an adapter."""
    identity: dict[str, Any] = EvalRun(command=(), settings=settings, engines={role: engine}).engines_snapshot()[role]
    return identity


def _bodies(config: RunConfig) -> dict[str, Any]:
    """What an experiment, unlike a run, may not change of endpoints either, e.g. whether their models think first."""
    asked = {role: config.engine_of(role) for role in get_args(Role)}
    bodies = {
        role: engine.extra_body
        for role, engine in asked.items()
        if isinstance(engine, OpenAIEngine | BatchEngine) and engine.extra_body
    }
    return {"extra_body": bodies} if bodies else {}


def engines(steps: Sequence[Step]) -> list[Engine]:
    """The models that the steps ask, without those that are trained in them."""
    found: list[Engine] = []
    for step in steps:
        settings = step.settings
        if isinstance(settings, RunConfig):
            found += settings.engines()
        elif isinstance(settings, Asked) and not step.after:
            found.append(engine_of(settings.model, settings.settings.engine))
        elif isinstance(settings, Judged):
            found.append(engine_of(settings.judge, settings.settings.judge))
    return found


def needs(steps: Sequence[Step]) -> list[str]:
    """What the machine must have for these steps, in words: a GPU, keys of endpoints, files of a benchmark."""
    asked = engines(steps)
    local = [engine.model for engine in asked if isinstance(engine, VllmEngine)]
    local += [step.settings.backbone.model for step in steps if isinstance(step.settings, SftConfig)]
    remote = [e for e in asked if isinstance(e, OpenAIEngine) or (isinstance(e, BatchEngine) and e.base_url)]
    keys = dict.fromkeys(engine.api_key_env for engine in remote)
    found = ["GPU"] if any(model != "embedded" for model in local) else []
    return found + list(keys) + missing(steps)


def missing(steps: Sequence[Step]) -> list[str]:
    """The benchmark files of these steps that aren't there."""
    paths = dict.fromkeys(path for step in steps if isinstance(step.settings, Asked) for path in step.settings.bench)
    return [path for path in paths if not bench_files(Path(path))]


def plain(settings: Any) -> Any:
    """Settings as JSON, for a person who looks into a step's folder."""
    return settings.model_dump(mode="json") if isinstance(settings, BaseModel) else None
