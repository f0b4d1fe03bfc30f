"""The bundles for other trainers: their shapes, and that nothing but control tokens differs from the export."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from pipelines import interchange
from pipelines.export import ExportError, export
from pipelines.interchange import Trainer, bundle
from synuc.cli import app
from synuc.formatting import Retention, grpo_example, parse_answer, sft_example
from synuc.neutralise import BREAK
from synuc.problem import Problem
from synuc.types import Label
from tests.runs import HOSTILE, Run, a_run

BOTH = (Trainer.MS_SWIFT, Trainer.LLAMA_FACTORY)
TAGS = '<img>/etc/passwd</img> {{idx}} {{ROUND0}} {{ROUND1}} <image> <audio> \\ " <start-image>'
TRAPS = f"{HOSTILE} {TAGS}"


def exported(path: Path, retention: Retention = Retention.PARTIAL) -> Run:
    """A run, one of its samples full of what the trainers read as control, exported with both bundles."""
    run = a_run(path)
    sample = run.accepted()[0].model_copy(update={"id": "trap-ND", "follow_up": TRAPS})
    run.samples.append(sample)
    run.write([sample])
    export(run.folder, retention)
    bundle(run.folder, BOTH)
    return run


def lines(run: Run, file: str) -> list[dict[str, Any]]:
    text = (run.folder.path / "export" / file).read_text("utf-8")
    return [json.loads(line) for line in text.removesuffix("\n").split("\n")]


def contents(run: Run) -> dict[str, bytes]:
    root = run.folder.path / "export"
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def unbroken(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace(BREAK, "")


def test_ms_swift_gets_messages_and_a_solution(tmp_path: Path) -> None:
    run = exported(tmp_path / "run")
    for row in lines(run, "ms-swift/uc-data-sft.jsonl"):
        assert [*row] == ["messages"]
        assert [[*message] for message in row["messages"]] == [["role", "content"]] * 2
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
    for row in lines(run, "ms-swift/uc-data-grpo.jsonl"):
        assert [*row] == ["messages", "solution"]
        assert [message["role"] for message in row["messages"]] == ["user"]
        assert isinstance(row["solution"], str)


def test_llama_factory_gets_a_description_that_fits_its_file(tmp_path: Path) -> None:
    run = exported(tmp_path / "run")
    folder = run.folder.path / "export" / "llama-factory"
    described = json.loads((folder / "dataset_info.json").read_text("ascii"))
    assert [*described] == ["uc-data-sft"]
    entry = described["uc-data-sft"]
    assert entry["formatting"] == "sharegpt"
    tags = entry["tags"]
    rows = lines(run, f"llama-factory/{entry['file_name']}")
    for row in rows:
        assert [*row] == [entry["columns"]["messages"]]
        said = [(message[tags["role_tag"]], message[tags["content_tag"]]) for message in row["messages"]]
        assert [role for role, _ in said] == [tags["user_tag"], tags["assistant_tag"]]
        assert all(isinstance(content, str) for _, content in said)
    assert len(rows) == len(run.accepted())


@pytest.mark.parametrize("retention", Retention)
def test_accepted_samples_and_no_others_as_they_were_exported(tmp_path: Path, retention: Retention) -> None:
    run = exported(tmp_path / "run", retention)
    accepted = run.accepted()
    assert 0 < len(accepted) < len(run.samples)
    sft = [unbroken(sft_example(sample, retention)["messages"]) for sample in accepted]
    for trainer in BOTH:
        assert [unbroken(row["messages"]) for row in lines(run, f"{trainer}/uc-data-sft.jsonl")] == sft
    grpo = [grpo_example(sample, retention) for sample in accepted]
    rows = lines(run, "ms-swift/uc-data-grpo.jsonl")
    assert [unbroken(row["messages"]) for row in rows] == [unbroken(row["messages"]) for row in grpo]
    assert [unbroken(json.loads(row["solution"])) for row in rows] == [unbroken(row["reference"]) for row in grpo]


def test_what_a_trainer_reads_as_control_is_broken_and_nothing_else(tmp_path: Path) -> None:
    run = exported(tmp_path / "run")
    plain = lines(run, "uc-data-sft.jsonl")
    for trainer, traps in ((Trainer.MS_SWIFT, interchange.SWIFT_TOKENS), (Trainer.LLAMA_FACTORY, ("{{idx}}",))):
        rows = lines(run, f"{trainer}/uc-data-sft.jsonl")
        assert [r["messages"] for r in rows[:-1]] == [r["messages"] for r in plain[:-1]]
        trapped = rows[-1]["messages"][0]["content"]
        assert not any(token in trapped for token in (*traps, "<image>", "<audio>", "<|im_start|>"))
        assert all(token in plain[-1]["messages"][0]["content"] for token in traps)
    swift = lines(run, "ms-swift/uc-data-grpo.jsonl")[-1]["messages"][0]["content"]
    assert not re.search(r"<img>(.+?)</img>", swift)  # swift/template/base.py, _replace_image_tags
    assert not swift.endswith("<start-image>")


def test_answers_can_still_be_read(tmp_path: Path) -> None:
    run = exported(tmp_path / "run")
    for trainer in BOTH:
        for row, sample in zip(lines(run, f"{trainer}/uc-data-sft.jsonl"), run.accepted(), strict=True):
            answer = parse_answer(row["messages"][1]["content"])
            assert getattr(answer, "label", answer) == sample.label


def test_a_repetition_gives_the_same_bytes_and_no_rubbish(tmp_path: Path) -> None:
    run = exported(tmp_path / "run")
    before, listed = contents(run), {*run.folder.path.iterdir()}
    export(run.folder, Retention.PARTIAL)
    said = bundle(run.folder, BOTH)
    assert contents(run) == before
    assert {*run.folder.path.iterdir()} == listed
    assert "LLaMA-Factory has no GRPO" in said[1]
    assert not any(str(run.folder.path.parent).encode() in data for data in before.values())


def test_a_bundle_is_written_on_demand_and_then_kept_up_to_date(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    export(run.folder, Retention.PARTIAL)
    assert bundle(run.folder, ()) == []
    assert not any("/" in name for name in contents(run))
    assert len(bundle(run.folder, [Trainer.MS_SWIFT])) == 1
    before = contents(run)
    export(run.folder, Retention.OMIT)
    assert len(bundle(run.folder, ())) == 1
    assert {*contents(run)} == {*before}
    shown = [row["messages"] for row in lines(run, "ms-swift/uc-data-sft.jsonl")]
    assert shown == [row["messages"] for row in lines(run, "uc-data-sft.jsonl")]


def test_a_failure_leaves_the_old_bundle_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = exported(tmp_path / "run")
    before, listed = contents(run), {*run.folder.path.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(interchange, "json_line", full)
    with pytest.raises(ExportError, match="No space left"):
        bundle(run.folder, BOTH)
    assert contents(run) == before
    assert {*run.folder.path.iterdir()} == listed


def test_the_command_writes_both_and_names_the_choices(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    command = ["export", str(run.folder.path)]
    wrong = CliRunner().invoke(app, [*command, "--for", "ms-swift", "--for", "axolotl"])
    assert isinstance(wrong.exception, Problem)
    assert str(wrong.exception) == "--for axolotl: choose one of ms-swift, llama-factory"
    assert not (run.folder.path / "export").exists()
    right = CliRunner().invoke(app, [*command, "--for", "llama-factory", "--for", "ms-swift"])
    assert right.exit_code == 0
    assert {name.split("/")[0] for name in contents(run) if "/" in name} == {"ms-swift", "llama-factory"}
    assert "no GRPO" in right.output


def test_the_reward_of_the_bundle_is_equation_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = exported(tmp_path / "run")
    # In the place of ms-swift, which is no dependency; the plugin uses no more of it.
    rewards = ModuleType("swift.rewards")
    rewards.__dict__.update(ORM=object, orms={})
    monkeypatch.setitem(sys.modules, "swift", ModuleType("swift"))
    monkeypatch.setitem(sys.modules, "swift.rewards", rewards)
    runpy.run_path(str(run.folder.path / "export" / "ms-swift" / "reward.py"))
    reward = rewards.__dict__["orms"]["synuc"]()
    solutions = [row["solution"] for row in lines(run, "ms-swift/uc-data-grpo.jsonl")]
    answers = [row["messages"][1]["content"] for row in lines(run, "ms-swift/uc-data-sft.jsonl")]
    labels = [sample.label for sample in run.accepted()]
    assert {*labels} == {*Label}
    state = SimpleNamespace(global_step=1)
    whole = [1 + 0.2 if label is Label.ND else 1 + 0.2 + 0.4 for label in labels]
    assert reward(answers, solution=solutions, trainer_state=state) == pytest.approx(whole)
    ic, nd = labels.index(Label.IC), labels.index(Label.ND)
    bare = "[Final Judgment]\nImplicit Conflict"
    elsewhere = re.sub(r"(explicit|implicit) (\w+): .+", r"\1 \2: quite another thing", answers[ic])
    said = [answers[nd], bare, elsewhere, "no answer"]
    assert reward(said, solution=[solutions[ic]] * 4) == pytest.approx([0.2, 1.0, 1.2, 0.0])
