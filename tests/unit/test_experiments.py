"""Experiments: their files, the names of their steps, what is run again and what isn't, and the report."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from eval.report.published import published
from experiments import report
from experiments.config import SCALES, TRAININGS, Experiment, Scale, load, shipped
from experiments.driver import Crew, ExperimentFailed, run
from experiments.plan import Cell, Kind, Step, cells, distinct, needs
from experiments.record import read, record
from experiments.steps import Here, StepFolder, perform
from experiments.table import SHOWN, lines, tables
from pipelines.run_folder import RunFolder
from synuc import cli_experiment
from synuc.config import RunConfig
from synuc.folder import RunError
from synuc.formatting import Retention
from synuc.layers import ConfigError
from synuc.problem import Problem
from tests.runs import a_run

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs" / "experiments"
QUIET = Console(quiet=True)

FILE: dict[str, Any] = {
    "title": "Retrieval",
    "reproduces": "Table 6",
    "common": {
        "generator": "engine.yaml",
        "backbone": "backbone.yaml",
        "sft": {"files": ["train.yaml"]},
        "grpo": {"files": ["train.yaml"]},
    },
    "variants": {
        "LLM-guided": {},
        "Lexical": {"synthesize": {"settings": {"method": {"retrieval": "bm25"}}}},
    },
    "bench": ["bench.jsonl"],
    "published": {"uc": {"table": "synuc_table6", "rows": {"Retrieval": "{variant}", "Training": "{training}"}}},
    "scales": {"toy": {"seeds": [0, 1]}, "full": {"seeds": [0, 1, 2, 3, 4]}},
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an experiment and all that it names."""
    files = {
        "engine.yaml": {"engine": {"kind": "openai", "model": "strong"}},
        "backbone.yaml": {"backbone": {"model": "org/small"}},
        "train.yaml": {"optimizer": {"learning_rate": 0.1, "epochs": 1}},
        "retrieval.yaml": FILE,
    }
    for name, data in files.items():
        (tmp_path / name).write_text(yaml.safe_dump(data), "utf-8")
    (tmp_path / "bench.jsonl").write_text('{"id": "a"}\n', "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(*overrides: str, scale: Scale = "toy") -> Experiment:
    return load(Path("retrieval.yaml"), scale, overrides)


def kinds(steps: list[Step]) -> dict[str, int]:
    found: dict[str, int] = {}
    for step in steps:
        found[step.kind] = found.get(step.kind, 0) + 1
    return found


# The shipped files


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("file", shipped(FOLDER), ids=lambda file: file.stem)
def test_a_shipped_experiment_is_whole(file: Path, scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    experiment = load(file, scale)
    planned = cells(experiment)
    assert {cell.variant for cell in planned} == set(experiment.variants)
    if scale == "toy":
        assert needs(distinct(planned)) == []
    for evaluation, quoted in experiment.published.items():
        assert evaluation in experiment.evaluations
        if quoted.rows:
            kept = record(experiment, file.stem, scale, planned)
            table = tables(kept, Path("none"))[experiment.evaluations.index(evaluation)]
            # A figure gives numbers for some of its bars only.
            assert any(row.quoted for row in table.rows)
            assert "Figure" in experiment.reproduces or all(row.quoted for row in table.rows[1::2])


def test_every_table_and_figure_of_sections_6_and_7_has_an_experiment() -> None:
    said = " ".join(yaml.safe_load(file.read_text("utf-8"))["reproduces"] for file in shipped(FOLDER))
    names = [f"Table {n}" for n in (4, 5, 6, 7)] + [f"Figure {n}" for n in (4, 5, 6, 7)]
    assert [name for name in names if name not in said] == []


def test_the_papers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    planned = cells(load(FOLDER / "figure7-training-stages.yaml", "full"))
    assert [cell.training for cell in planned[:4]] == list(TRAININGS)
    assert len(planned) == 1 + 3 * 5
    base, sft, plain, attribution = (cell.steps for cell in planned[:4])
    assert kinds(distinct(planned)) == {"synthesize": 1, "export": 1, "sft": 5, "grpo": 10, "uc": 16, "states": 16}
    synthesis: RunConfig = sft["synthesize"].settings
    assert (synthesis.seeds.limit, synthesis.engine.model) == (2000, "deepseek-v4-flash")
    assert (plain["grpo"].settings.reward.beta, attribution["grpo"].settings.reward.beta) == (0, 0.4)
    assert plain["grpo"].after == attribution["grpo"].after
    assert (sft["sft"].settings.lora.rank, sft["sft"].settings.optimizer.learning_rate) == (8, 1e-4)
    assert base["uc"].identity["prompt"] == "zero_shot"
    assert base["uc"].identity["engine"]["model"] == "Qwen/Qwen3.5-4B"
    assert attribution["uc"].identity["temperature"] == 0.01


def test_what_an_experiment_needs_is_said(home: Path) -> None:
    steps = distinct(cells(loaded("bench=[gone.jsonl]")))
    assert needs(steps) == ["GPU", "OPENAI_API_KEY", "gone.jsonl"]


@pytest.mark.parametrize("file", sorted((ROOT / "configs" / "engines").glob("*.yaml")), ids=lambda file: file.stem)
def test_a_shipped_engine_composes(file: Path) -> None:
    from eval.config import engine_of
    from synuc.config import OpenAIEngine, load

    engine = load([file]).engine
    assert engine_of(str(file), {}) == engine
    if isinstance(engine, OpenAIEngine):
        assert engine.base_url.startswith("https://")
        assert engine.api_key_env.endswith("_API_KEY")


REQUESTED: dict[str, dict[str, Any]] = {
    "anthropic": {"temperature": 1},
    "deepseek-v4-flash": {"temperature": 0.01, "thinking": {"type": "disabled"}},
    "doubao-seed-2.0-lite": {"thinking": {"type": "disabled"}},
    "glm-5.1": {"temperature": 0.01, "thinking": {"type": "disabled"}},
    "kimi-k2.6": {"temperature": 0.6, "thinking": {"type": "disabled"}},
    "mimo-v2.5": {"temperature": 0.01, "thinking": {"type": "disabled"}},
    "openai": {"temperature": 0.01, "reasoning_effort": "none"},
    "qwen3.7-plus": {"temperature": 0.01, "enable_thinking": False},
}
"""What these endpoints must be told to answer within the bound of a call, at a temperature that they don't refuse."""


@pytest.mark.parametrize("name", REQUESTED)
def test_an_endpoint_is_asked_as_it_wants_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from actors.openai_api import body
    from eval.config import engine_of
    from synuc.config import OpenAIEngine
    from synuc.types import LLMRequest, Spoken

    engine = engine_of(str(ROOT / "configs" / "engines" / f"{name}.yaml"), {})
    assert isinstance(engine, OpenAIEngine)
    request = LLMRequest(
        stage="classify", role="generator", key="1", messages=(), reply=Spoken, max_tokens=9, temperature=0.01
    )
    fields = body(engine, request, 0)
    assert {key: fields[key] for key in REQUESTED[name]} == REQUESTED[name]


# What can't be used


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            "variants.Lexical.synthesize.settings.method.retreival=llm",
            r"variant Lexical.*did you mean method.retrieval",
        ),
        ("published.uc.table=synuc_table99", "synuc_table99"),
        ("evaluations=[pairwise]", "against"),
        ("seeds=[3, 3]", "twice"),
        ("everywhere.backbone=none.yaml", r"none\.yaml"),
        ("against={variant: other, training: sft, judge: embedded}", "go together"),
    ],
)
def test_a_mistake_is_named(home: Path, override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){says}"):
        cells(loaded(override))


def test_a_reference_without_such_a_training_is_named(home: Path) -> None:
    against = "against={variant: Lexical, training: grpo, judge: embedded}"
    with pytest.raises(ConfigError, match="Lexical has no training grpo"):
        cells(loaded("evaluations=[pairwise]", against))


def test_a_scale_that_a_file_lacks_is_named(home: Path) -> None:
    Path("retrieval.yaml").write_text(yaml.safe_dump({**FILE, "scales": {"full": {}}}), "utf-8")
    with pytest.raises(ConfigError, match="no scale toy; it has full"):
        loaded()
    with pytest.raises(Problem, match="--scale huge"):
        cli_experiment.run(Path("retrieval.yaml"), home / "run", "huge")


def test_a_benchmark_that_is_missing_is_named_before_anything_is_done(home: Path) -> None:
    with pytest.raises(Problem, match=r"no benchmark at gone\.jsonl"):
        run(loaded("bench=[gone.jsonl]"), "retrieval", "toy", home / "run", QUIET, Fake().crew)
    assert not (home / "run").exists()


def test_a_folder_without_experiments_is_named(home: Path) -> None:
    with pytest.raises(RunError, match="synuc experiment run"):
        report.build(home, home / "report.html")
    with pytest.raises(ConfigError, match="holds no experiment"):
        shipped(home / "nothing")


# The names of steps


@given(st.data())
def test_a_change_renames_what_depends_on_it_and_nothing_else(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 9))
    parents = [sorted(data.draw(st.sets(st.integers(0, n - 1), max_size=2))) if n else [] for n in range(size)]
    changed = data.draw(st.integers(0, size - 1))

    def names(value: int) -> list[str]:
        steps: list[Step] = []
        for n in range(size):
            identity = {"of": n, "value": value if n == changed else 0}
            steps.append(Step("quality", identity, tuple(steps[parent] for parent in parents[n])))
        return [step.name for step in steps]

    depends: set[int] = {changed}
    for n in range(size):
        if depends & set(parents[n]):
            depends.add(n)
    before, after = names(0), names(1)
    assert {n for n in range(size) if before[n] != after[n]} == depends
    assert len({*before, *after}) == size + len(depends)


CHANGES: dict[str, set[str]] = {
    "common.synthesize.settings.method.tau=70": {"synthesize", "export", "sft", "grpo", "uc"},
    "common.synthesize.settings.engine.extra_body={seed: 7}": {"synthesize", "export", "sft", "grpo", "uc"},
    "common.retention=full": {"export", "sft", "grpo", "uc"},
    "common.sft.settings.lora.rank=4": {"sft", "grpo", "uc"},
    "everywhere.grpo.settings.rollout.temperature=0.5": {"grpo", "uc of grpo"},
    "everywhere.evaluate.settings.max_tokens=99": {"uc"},
    # Where and how wide something runs, and what is added beside it.
    "common.sft.settings.cluster.workers=4": set(),
    "common.grpo.settings.record.save_every=7": set(),
    "common.synthesize.settings.cluster.workers=3": set(),
    "common.synthesize.settings.engine.base_url=https://mirror.example/v1": set(),
    "common.evaluate.settings.cluster.workers=3": set(),
    "seeds=[0, 1, 2]": set(),
    "title=Another": set(),
}


def named(planned: list[Cell]) -> dict[tuple[str, str, int, str], str]:
    return {
        (
            cell.variant,
            "uc of grpo" if kind == "uc" and cell.training != "sft" else kind,
            cell.seed,
            cell.training,
        ): step.name
        for cell in planned
        for kind, step in cell.steps.items()
    }


@given(changes=st.sets(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=3))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_setting_renames_just_what_it_decides(home: Path, changes: set[str]) -> None:
    before, after = named(cells(loaded())), named(cells(loaded(*changes)))
    renamed = {key[1] for key in before if before[key] != after[key]}
    expected = {kind for change in changes for kind in CHANGES[change]}
    if "uc" in expected:
        expected.add("uc of grpo")
    assert renamed == expected


def test_other_items_are_asked_about_again_and_the_place_of_their_file_is_no_matter(home: Path) -> None:
    before = named(cells(loaded()))
    Path("bench.jsonl").rename("elsewhere.jsonl")
    Path("sub").mkdir()
    Path("elsewhere.jsonl").rename("sub/bench.jsonl")
    assert named(cells(loaded("bench=[sub/bench.jsonl]"))) == before
    Path("sub/bench.jsonl").write_text('{"id": "b"}\n', "utf-8")
    after = named(cells(loaded("bench=[sub]")))
    assert {key[1] for key in before if before[key] != after[key]} == {"uc", "uc of grpo"}


def test_seed_files_that_changed_are_synthesised_from_again(home: Path) -> None:
    everything = {key[1] for key in named(cells(loaded()))}
    # There are no names for files where there are none yet.
    seeds = "common.synthesize.settings.seeds.paths=[chats, sharegpt-sample, hf:org/chats]"
    missing = named(cells(loaded(seeds)))
    Path("chats").mkdir()
    Path("chats/a.jsonl").write_text('{"id": "a"}\n', "utf-8")
    Path("chats/notes.txt").write_text("none of the seeds", "utf-8")
    before = named(cells(loaded(seeds)))
    assert before != missing
    Path("chats/notes.txt").write_text("still none", "utf-8")
    assert named(cells(loaded(seeds))) == before
    Path("chats/a.jsonl").write_text('{"id": "b"}\n', "utf-8")
    after = named(cells(loaded(seeds)))
    assert {key[1] for key in before if before[key] != after[key]} == everything


def test_a_plan_reads_each_file_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("chats").mkdir()
    for name in ("a", "b"):
        Path(f"chats/{name}.jsonl").write_text('{"id": "a"}\n', "utf-8")
    opened: list[str] = []
    plain = Path.open

    def counted(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        if mode == "rb":
            opened.append(path.name)
        return plain(path, mode, *more, **named)

    monkeypatch.setattr(Path, "open", counted)
    planned = cells(loaded("common.synthesize.settings.seeds.paths=[chats]"))
    assert len({cell.variant for cell in planned}) == 2
    assert sorted(opened) == ["a.jsonl", "b.jsonl", "bench.jsonl"]


# What is run, shared, skipped and tried again


class Fake:
    """Steps that only write their figures. `broken`: what the steps of a name's beginning end with."""

    def __init__(self, broken: Mapping[str, BaseException] | None = None, concurrent: int = 1) -> None:
        self.did: list[str] = []
        self.broken = dict(broken or {})
        self.concurrent = concurrent

    def do(self, step: Step, here: Here) -> None:
        for before in step.after:
            assert StepFolder(here.run, before.name).done
        assert not StepFolder(here.run, step.name).done
        self.did.append(step.name)
        for begins, error in self.broken.items():
            if step.name.startswith(begins):
                raise error
        if step.kind == "uc":
            StepFolder(here.run, step.name).write_metrics(classified(step))

    @contextmanager
    def _crew(self) -> Iterator[Crew]:
        yield Crew(self.do, self.concurrent, [{"CPU": 8}])

    def crew(self, experiment: Experiment) -> AbstractContextManager[Crew]:
        return self._crew()


def classified(step: Step) -> dict[str, Any]:
    """Figures that depend on the seed of the training: F1 0.4 and 0.6 for the seeds 0 and 1."""
    f1 = 0.4 + 0.2 * step.after[0].identity["seed"] if step.after else 0.1
    shares = {"precision": 0.5, "recall": 0.25, "f1": f1, "recall_ic": 1.0, "unparseable": 0.0, "n": 8.0}
    return {"overall": shares, "subsets": {"WildChat-UC": shares, "own": {**shares, "recall_ic": None}}}


def go(path: Path, fake: Fake, *overrides: str, scale: Scale = "toy", name: str = "retrieval") -> list[str]:
    """Run the experiment, and say which steps were carried out."""
    run(loaded(*overrides, scale=scale), name, scale, path, QUIET, fake.crew)
    return fake.did


def test_shared_steps_run_once_and_done_ones_not_again(home: Path) -> None:
    did = go(home / "run", Fake())
    planned = cells(loaded())
    assert kinds(distinct(planned)) == {"synthesize": 2, "export": 2, "sft": 4, "grpo": 4, "uc": 8}
    assert sorted(did) == sorted(step.name for step in distinct(planned))
    assert go(home / "run", Fake()) == []
    more = go(home / "run", Fake(), scale="full")
    assert {name.partition("-")[0] for name in more} == {"sft", "grpo", "uc"}
    assert len(more) == 3 * 2 * 4


def test_several_experiments_of_a_run_share_their_steps(home: Path) -> None:
    first = go(home / "run", Fake())
    Path("other.yaml").write_text(yaml.safe_dump({**FILE, "variants": {"SynUC": {}}, "published": {}}), "utf-8")
    fake = Fake()
    run(load(Path("other.yaml"), "toy"), "other", "toy", home / "run", QUIET, fake.crew)
    assert fake.did == []
    assert [kept.name for kept in read(home / "run")] == ["other", "retrieval"]
    assert len(first) == 20


@pytest.mark.parametrize("after", [0, 3, 9])
def test_a_run_that_is_interrupted_goes_on_where_it_stood(home: Path, after: int) -> None:
    class Interrupted(Fake):
        def do(self, step: Step, here: Here) -> None:
            if len(self.did) == after:
                raise KeyboardInterrupt
            super().do(step, here)

    stopped, rest = Interrupted(), Fake()
    with pytest.raises(KeyboardInterrupt):
        go(home / "run", stopped)
    assert len(stopped.did) == after
    go(home / "run", rest)
    assert len(rest.did) == 20 - after
    assert not set(stopped.did) & set(rest.did)


def test_a_step_that_fails_holds_up_its_own_cells_only_and_says_why(home: Path) -> None:
    (lexical,) = (
        cell.steps["sft"].name
        for cell in cells(loaded())
        if (cell.variant, cell.seed, cell.training) == ("Lexical", 1, "sft")
    )
    broken = Fake({lexical: Problem("lower the learning rate")})
    with pytest.raises(
        ExperimentFailed,
        match=rf"1 of 20 steps failed, and 2 of 8 cells(.|\n)*{lexical}, for Lexical, SFT, seed 1 and 1 more: lower",
    ):
        go(home / "run", broken)
    # Its DR-GRPO and the two classifications wait.
    assert len(broken.did) == 20 - 3
    (kept,) = read(home / "run")
    states = {(cell.variant, cell.seed, cell.state(home / "run")) for cell in kept.cells}
    assert states == {
        ("Lexical", 1, "failed"),
        *((name, n, "done") for name, n in [("LLM-guided", 0), ("LLM-guided", 1), ("Lexical", 0)]),
    }
    assert len(go(home / "run", Fake())) == 4
    assert all(cell.state(home / "run") == "done" for cell in kept.cells)


def test_a_full_disk_is_a_failure_that_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(StepFolder, "end", full)
    monkeypatch.setattr(StepFolder, "fail", full)
    with pytest.raises(ExperimentFailed, match=r"2 of 20 steps failed, and 8 of 8(.|\n)*No space left"):
        go(home / "run", Fake())


def test_an_unforeseen_error_keeps_its_traceback(home: Path) -> None:
    with pytest.raises(ExperimentFailed, match="KeyError: 'deep'"):
        go(home / "run", Fake({"synthesize": KeyError("deep")}))
    (first, *_) = (home / "run" / "steps").iterdir()
    assert "Traceback" in json.loads((first / "failed.json").read_text("utf-8"))["trace"]


def test_a_changed_setting_reruns_what_depends_on_it_only(home: Path) -> None:
    go(home / "run", Fake())
    did = go(home / "run", Fake(), "everywhere.grpo.settings.reward.beta=0.1")
    assert kinds_of(did) == {"grpo": 4, "uc": 4}
    # And back: nothing was lost.
    assert go(home / "run", Fake()) == []
    one = go(home / "run", Fake(), "variants.Lexical.synthesize.settings.method.tau=70")
    assert kinds_of(one) == {"synthesize": 1, "export": 1, "sft": 2, "grpo": 2, "uc": 4}


def kinds_of(names: list[str]) -> dict[str, int]:
    return {
        kind: sum(name.startswith(f"{kind}-") for name in names) for kind in {name.partition("-")[0] for name in names}
    }


def test_steps_run_side_by_side_as_far_as_they_may(home: Path) -> None:
    meeting = threading.Barrier(2, timeout=30)
    running: list[int] = [0, 0]
    lock = threading.Lock()

    class Together(Fake):
        def do(self, step: Step, here: Here) -> None:
            with lock:
                running[0] += 1
                running[1] = max(running)
            if step.kind == "synthesize":
                meeting.wait()
            assert here.cpus == 4
            super().do(step, here)
            with lock:
                running[0] -= 1

    assert len(go(home / "run", Together(concurrent=2))) == 20
    assert running[1] == 2


def test_all_threads_end_when_everything_waits_for_what_failed(home: Path) -> None:
    with pytest.raises(ExperimentFailed, match="2 of 20 steps failed, and 8 of 8 cells"):
        go(home / "run", Fake({"synthesize": Problem("no key")}, concurrent=3))


class Interrupted(Fake):
    """Two steps at a time that meet; then Ctrl-C comes, `times`. They end as steps do when their cluster is gone."""

    def __init__(self, times: int) -> None:
        super().__init__(concurrent=2)
        self.times = times
        self.meeting = threading.Barrier(2, timeout=30)
        self.left = threading.Event()
        self.said = io.StringIO()
        self.threads: list[threading.Thread] = []

    def do(self, step: Step, here: Here) -> None:
        self.did.append(step.name)
        self.threads.append(threading.current_thread())
        if self.meeting.wait() == 0:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)
                deadline = time.monotonic() + 20
                while "Stopping" not in self.said.getvalue():
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
        self.meeting.wait()
        if self.times == 2:
            assert self.left.wait(20)
        if step.name == max(self.did):
            raise ConnectionError("Ray was shut down")

    @contextmanager
    def _crew(self) -> Iterator[Crew]:
        try:
            yield Crew(self.do, self.concurrent, [{"CPU": 8}])
        finally:
            if self.times == 1:
                assert not any(thread.is_alive() for thread in self.threads)
            self.left.set()


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_is_no_failure_of_steps_that_run_side_by_side(home: Path, times: int) -> None:
    fake = Interrupted(times)
    with pytest.raises(KeyboardInterrupt):
        run(loaded(), "retrieval", "toy", home / "run", Console(file=fake.said), fake.crew)
    for thread in fake.threads:
        thread.join(20)
    assert kinds_of(fake.did) == {"synthesize": 2}
    assert not list((home / "run" / "steps").glob("*/failed.json"))
    assert len(list((home / "run" / "steps").glob("*/done.json"))) == 1
    assert len(go(home / "run", Fake())) == 19


def test_an_untrained_reference_is_that_of_every_seed(home: Path) -> None:
    against = "against={variant: LLM-guided, training: base, judge: embedded}"
    planned = cells(loaded("evaluations=[pairwise]", against, "variants.LLM-guided.trainings=[base, sft]"))
    (reference,) = (cell for cell in planned if "pairwise" not in cell.steps)
    assert (reference.variant, reference.training, reference.seed) == ("LLM-guided", "base", 0)
    compared = [cell for cell in planned if cell is not reference]
    assert {cell.seed for cell in compared} == {0, 1}
    for cell in compared:
        assert cell.steps["pairwise"].after == (reference.steps["uc"], cell.steps["uc"])


def test_an_answer_is_compared_with_that_of_the_same_seed(home: Path) -> None:
    against = "against={variant: LLM-guided, training: grpo_attribution, judge: embedded}"
    planned = cells(loaded("evaluations=[pairwise]", against))
    first = {cell.seed: cell for cell in planned if "pairwise" not in cell.steps}
    assert {(cell.variant, cell.training) for cell in first.values()} == {("LLM-guided", "grpo_attribution")}
    for cell in planned:
        if cell is not first[cell.seed]:
            assert cell.steps["pairwise"].after == (first[cell.seed].steps["uc"], cell.steps["uc"])


# The steps themselves


def a_step(kind: Kind, *after: Step, **more: Any) -> Step:
    return Step(kind, {"a": "test"}, after, **more)


def test_two_retentions_are_exported_from_one_synthesis(tmp_path: Path) -> None:
    data = a_step("synthesize")
    here = Here(tmp_path, QUIET, 2)
    a_run(here.of(data))
    exports = []
    for retention in (Retention.FULL, Retention.OMIT):
        step = Step("export", {"retention": retention}, (data,), retention)
        here.of(step).mkdir(parents=True)
        perform(step, here)
        perform(step, here)  # begun anew after a crash
        exports.append((here.of(step) / "export" / "uc-data-sft.jsonl").read_text("utf-8"))
    assert exports[0] != exports[1]
    assert len(exports[0].split("\n")) == len(exports[1].split("\n"))
    assert not (RunFolder(here.of(data)).path / "export").exists()


def test_training_gets_the_export_the_start_and_its_share(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from training import driver

    seen: dict[str, Any] = {}
    for name in ("sft", "grpo"):

        def train(config: Any, path: Path, console: Console, name: str = name) -> None:
            seen[name] = (config, path)

        monkeypatch.setattr(driver, f"train_{name}", train)
    here = Here(home, QUIET, 3)
    cell = cells(loaded())[1]
    for kind in ("sft", "grpo"):
        perform(cell.steps[kind], here)
    (sft, sft_path), (grpo, grpo_path) = seen["sft"], seen["grpo"]
    assert sft.data.path == grpo.data.path == here.of(cell.steps["export"]) / "export"
    assert (grpo.start, grpo_path) == (sft_path, here.of(cell.steps["grpo"]))
    assert sft.cluster.cpus_per_worker == 3
    assert sft.seed == grpo.seed == 0


def test_data_are_one_line_of_a_variant_whatever_is_trained_on_them(home: Path) -> None:
    planned = cells(loaded("evaluations=[quality]"))
    kept = record(loaded("evaluations=[quality]"), "data", "toy", planned)
    assert kinds(distinct(planned))["quality"] == 2
    found = [(line.variant, line.training, line.planned) for line in lines(kept, home, "quality")]
    assert found == [("LLM-guided", "", 1), ("Lexical", "", 1)]


def test_the_quality_of_the_data_is_an_evaluation(tmp_path: Path) -> None:
    data = a_step("synthesize")
    step = a_step("quality", data)
    here = Here(tmp_path, QUIET, 2)
    a_run(here.of(data))
    here.of(step).mkdir(parents=True)
    perform(step, here)
    figures = SHOWN["quality"].figures(StepFolder(tmp_path, step.name).metrics())
    accepted = [figures[f"Accepted {label}"] for label in ("ND", "ER", "IC")]
    assert sum(map(float, filter(None, accepted))) == 11
    assert figures["en words"] is None  # too few samples to say anything


# Tables and report


def test_a_line_is_the_mean_over_seeds_beside_what_is_published(home: Path) -> None:
    go(home / "run", Fake())
    (kept,) = read(home / "run")
    found = lines(kept, home / "run", "uc")
    assert [(line.variant, line.training, line.planned) for line in found] == [
        (variant, training, 2) for variant in ("LLM-guided", "Lexical") for training in ("SFT", "DR-GRPO†")
    ]
    # 40 and 60: standard error 10, t(0.975, 1) = 12.7062.
    f1 = found[0].value("Overall F1")
    assert f1 is not None
    assert f1.mean == pytest.approx(50)
    assert f1.half_width == pytest.approx(127.062, abs=1e-3)
    assert found[0].value("own R(IC)") is None
    (table,) = tables(kept, home / "run")
    rows = {(str(row.cells[0]), str(row.cells[1]), str(row.cells[2])): row for row in table.rows}
    paper = rows["Lexical", "DR-GRPO†", "paper"]
    assert paper.quoted
    expected = next(
        row
        for row in published("synuc_table6").records()
        if (row["Retrieval"], row["Training"]) == ("Lexical", "DR-GRPO†")
    )
    shown = dict(zip(table.titles(), paper.cells, strict=True))
    assert shown["Overall F1"] == expected["Overall F1"] == 77.68
    assert shown["WildChat-UC R(IC)"] == expected["WildChat-UC R(IC)"]
    assert shown["own F1"] is None


def test_published_intervals_stand_beside_means(home: Path) -> None:
    file = {
        **FILE,
        "variants": {"SynUC": {}},
        "published": {
            "uc": {"table": "synuc_table4", "rows": {"Method": "{variant} ({training})", "Statistic": "mean"}}
        },
    }
    Path("retrieval.yaml").write_text(yaml.safe_dump(file), "utf-8")
    go(home / "run", Fake())
    (table,) = tables(read(home / "run")[0], home / "run")
    (cell,) = [
        cells[table.titles().index("Overall F1")]
        for row, cells in table.printed()
        if row.cells[:3] == ("SynUC", "SFT", "paper")
    ]
    assert (cell.text, cell.spread) == ("79.50", "± 0.80")


def test_the_report_has_all_and_says_what_is_missing(home: Path) -> None:
    steps = {(cell.variant, cell.training, cell.seed): cell.steps for cell in cells(loaded())}
    lost = steps["Lexical", "grpo_attribution", 1]["grpo"].name
    with pytest.raises(ExperimentFailed):
        go(home / "run", Fake({lost: Problem("<b>no</b> memory | left")}))
    report.build(home / "run", home / "out" / "page.html")
    page = (home / "out" / "page.html").read_text("utf-8")
    text = (home / "out" / "page.md").read_text("utf-8")
    for said in (page, text):
        assert "Retrieval (toy scale)" in said
        assert "77.68" in said
        assert "127.06" in said
        assert "1 of 2" in said
        assert "Cells without a result: 1 of 8." in said
    assert "&lt;b&gt;no&lt;/b&gt; memory | left" in page
    pictures = sorted(file.name for file in (home / "out" / "page-figures").iterdir())
    assert pictures == ["retrieval-toy-0.svg", "retrieval-toy-1.svg"]
    assert all(f"page-figures/{name}" in text for name in pictures)


def test_a_report_of_nothing_done_yet_is_made_all_the_same(home: Path) -> None:
    with pytest.raises(ExperimentFailed):
        go(home / "run", Fake({"synthesize": Problem("no key")}))
    report.build(home / "run", home / "page.html")
    assert "Cells without a result: 8 of 8." in (home / "page.md").read_text("utf-8")
    with pytest.raises(Problem, match=r"ends in \.html"):
        report.build(home / "run", home / "page.pdf")


def test_what_is_printed_leaves_subsets_out(home: Path) -> None:
    told = Console(record=True, width=200, file=(home / "told").open("w", encoding="utf-8"))
    run(loaded(), "retrieval", "toy", home / "run", told, Fake().crew)
    text = told.export_text()
    assert "0 of 20 steps are done." in text
    assert "50.00 ± 127.06" in text
    assert "WildChat" not in text
    assert "synuc experiment report" in text
