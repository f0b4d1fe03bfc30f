"""Planted exact and near-duplicate dialogues are found in both languages; unrelated ones aren't; nothing is dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipelines.export import export
from pipelines.quality.contamination import PairsUnwritten, contamination, lines
from pipelines.quality.dialogues import NoDialogue, Talk, talks
from synuc.cli import app
from synuc.formatting import Retention
from tests.quality import innocent
from tests.runs import a_run

Said = Sequence[tuple[str, str]]
ENGLISH: Said = (
    ("Plan a short weekend trip for my wife and our two kids, somewhere quiet near a lake.", "Gladly. Day one: ..."),
    (
        "Please avoid crowded attractions, and keep the evenings free so that they can sleep early.",
        "Then I suggest ...",
    ),
)
CHINESE: Said = (
    (
        "请帮我写一份学校运动会的开幕词，面向全校师生，语气要活泼亲切，最好能提到我们学校的吉祥物小狮子。",
        "好的，以下是……",
    ),
    ("再短一点，控制在三百字以内，结尾要有一句可以让同学们一起喊的口号，不要用太生僻的成语。", "修改如下……"),
)
OTHER: Said = (
    (
        "I need a poem about autumn leaves, twelve lines, and it should rhyme in couplets if you can.",
        "Leaves of gold ...",
    ),
    ("Lovely! Could the last couplet mention the smell of rain on warm stones, please?", "Of course ..."),
)


def messages(said: Said) -> list[dict[str, str]]:
    return [
        {"role": role, "content": text} for pair in said for role, text in zip(("user", "assistant"), pair, strict=True)
    ]


def write(path: Path, key: str, dialogues: Mapping[str, Said], **more: Any) -> str:
    rows = [{"id": id, key: messages(said), **more} for id, said in dialogues.items()]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return str(path)


def compare(train: str, bench: str, out: Path) -> tuple[dict[str, Any], list[tuple[str, str, str]]]:
    facts = contamination(train, [bench], out, Console(quiet=True))
    pairs = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert facts["exact"] + facts["near"] == len(pairs)
    return facts, [(pair["kind"], pair["train"], pair["bench"]) for pair in pairs]


@pytest.fixture
def bench(tmp_path: Path) -> str:
    return write(tmp_path / "bench.jsonl", "history", {"en": ENGLISH, "zh": CHINESE}, follow_up="And now?", label="ND")


def changed(said: Said, *pairs: tuple[str, str]) -> Said:
    texts = [(user, answer) for user, answer in said]
    for old, new in pairs:
        assert any(old in user for user, _ in texts)
        texts = [(user.replace(old, new), answer) for user, answer in texts]
    return texts


def test_planted_dialogues_are_found_in_both_languages(tmp_path: Path, bench: str) -> None:
    train = write(
        tmp_path / "train.jsonl",
        "messages",
        {
            "other": OTHER,
            "shouted": [(user.upper(), f" {answer}\n") for user, answer in ENGLISH],
            "edited": changed(ENGLISH, ("two kids", "three kids"), ("quiet", "calm")),
            "answered-anew": [(user, "Something else.") for user, _ in ENGLISH],
            "goes-on": [*ENGLISH, ("Thank you! What should we pack for two days in May?", "Jackets ...")],
            "first-turn": ENGLISH[:1],
            "zh-same": CHINESE,
            "zh-edited": changed(CHINESE, ("小狮子", "小老虎"), ("三百", "四百")),
        },
    )
    facts, pairs = compare(train, bench, tmp_path / "pairs.jsonl")
    assert sorted(pairs) == [
        ("exact", "shouted", "en"),
        ("exact", "zh-same", "zh"),
        ("near", "answered-anew", "en"),
        ("near", "edited", "en"),
        ("near", "first-turn", "en"),
        ("near", "goes-on", "en"),
        ("near", "zh-edited", "zh"),
    ]
    assert facts["train"] == {"dialogues": 8, "too_short": 0, "found": 7, "refused": {}}
    assert facts["bench"] == {"dialogues": 2, "too_short": 0, "found": 2, "refused": {}}
    said = "\n".join(lines(facts, tmp_path / "pairs.jsonl"))
    assert "training data: 8 dialogues, 7 of them in a pair" in said
    assert "pairs: 2 exact, 5 near" in said


def test_unrelated_dialogues_are_no_pairs(tmp_path: Path) -> None:
    said = {str(n): [(innocent(n) + " " + innocent(n + 101), "Yes.")] for n in range(60)}
    bench = write(tmp_path / "bench.jsonl", "history", {"en": ENGLISH, "zh": CHINESE, "o": OTHER}, label="ND")
    _, pairs = compare(write(tmp_path / "train.jsonl", "messages", said), bench, tmp_path / "pairs.jsonl")
    assert pairs == []


def test_short_dialogues_are_compared_for_equality_and_counted(tmp_path: Path) -> None:
    bench = write(tmp_path / "b.jsonl", "history", {"hi": [("Hello there", "Hi!")]})
    train = write(
        tmp_path / "t.jsonl",
        "messages",
        {"same": [("hello  there", "hi!")], "longer": [("Hello there", "Hi!"), *ENGLISH]},
    )
    facts, pairs = compare(train, bench, tmp_path / "pairs.jsonl")
    assert pairs == [("exact", "same", "hi")]
    assert facts["train"]["too_short"] == facts["bench"]["too_short"] == 1


def test_a_run_and_its_export_give_their_samples(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    export(run.folder, Retention.OMIT)
    of_run, of_export = (list(talks(str(path))) for path in (run.folder.path, run.folder.path / "export"))
    ids = [sample.id for sample in run.accepted()]
    found = [talk for talk in of_export if isinstance(talk, Talk)]
    assert [talk.id for talk in found] == ids
    digests = {talk.id: talk.digest for talk in of_run if isinstance(talk, Talk)}
    assert digests == {talk.id: talk.digest for talk in found}


def test_a_run_is_contaminated_by_its_own_benchmark(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    export(run.folder, Retention.OMIT)
    bench = str(run.folder.path / "export" / "uc-bench.jsonl")
    facts, pairs = compare(str(run.folder.path), bench, tmp_path / "pairs.jsonl")
    assert facts["train"]["found"] == facts["bench"]["found"] == 11
    assert {("exact", sample.id, sample.id) for sample in run.accepted()} <= {*pairs}


def test_records_without_a_dialogue_are_counted_with_their_reason(tmp_path: Path, bench: str) -> None:
    train = Path(write(tmp_path / "train.jsonl", "messages", {"other": OTHER}))
    odd: list[object] = [
        {"id": "x"},
        [1],
        {"messages": "text"},
        {"messages": [{"role": "oracle", "content": "."}]},
        {"messages": [{"role": "assistant", "content": "Hello"}]},
        {"dialogue": {"turns": 3}},
    ]
    train.write_text(train.read_text("utf-8") + "".join(f"{json.dumps(row)}\n" for row in odd) + "{broken\n", "utf-8")
    facts, _ = compare(str(train), bench, tmp_path / "pairs.jsonl")
    assert facts["train"]["refused"] == {"missing_fields": 4, "invalid_role": 1, "no_user": 1, "invalid_json": 1}
    assert "4 refused: missing_fields" in "\n".join(lines(facts, tmp_path / "pairs.jsonl"))


def test_nothing_to_compare_is_a_problem_and_leaves_no_file(tmp_path: Path, bench: str) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"id": 1}\n', "utf-8")
    out = tmp_path / "pairs.jsonl"
    with pytest.raises(NoDialogue, match=r"empty\.jsonl: no dialogue to compare \(1 missing_fields\)"):
        compare(str(empty), bench, out)
    with pytest.raises(NoDialogue, match="missing_fields"):
        compare(bench, str(empty), out)
    with pytest.raises(PairsUnwritten, match="choose another --out"):
        compare(bench, bench, tmp_path / "nowhere" / "pairs.jsonl")
    assert {file.name for file in tmp_path.iterdir()} == {"empty.jsonl", "bench.jsonl"}


def test_the_command_ends_with_3_if_there_are_pairs(tmp_path: Path, bench: str) -> None:
    out = tmp_path / "pairs.jsonl"
    clean = write(tmp_path / "clean.jsonl", "messages", {"other": OTHER})
    for train, code, pairs in ((clean, 0, 0), (bench, 3, 2)):
        result = CliRunner().invoke(app, ["contamination", train, "--bench", bench, "--out", str(out)])
        assert result.exit_code == code, result.output
        assert f"pairs: {pairs} exact, 0 near" in result.output
        assert len(out.read_text("utf-8").splitlines()) == pairs
