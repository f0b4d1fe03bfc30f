"""Benchmarks: the documented shape, files with other names, what is refused and why, and the benchmark made by hand."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from eval.bench import BenchItem, Fields, GoldConstraint, Rationale, read_bench, write_bench
from eval.records import RecordsError
from synuc.replies import CATEGORIES
from synuc.speaking import Speaking
from synuc.types import Dialogue, Label, Relation, Turn, clean

HAND_MADE = Path(__file__).parents[1] / "data" / "uc_bench.jsonl"
SIGNALS = ("instead", "actually", "no longer", "rather than", "change", "forget", "改", "换", "不用", "其实", "算了")

PAIR = {
    "historical": [
        {"type": "implicit", "dimension": "audience", "value": "children", "evidence": "my kids", "turn": 1}
    ],
    "new": [{"type": "explicit", "dimension": "place", "value": "a night club", "evidence": "the night club"}],
    "text": "A night club is no place for children.",
}
RECORD: dict[str, Any] = {
    "id": "one",
    "subset": "Own-UC",
    "language": "en",
    "history": [
        {"role": "user", "content": "Plan an evening for my kids."},
        {"role": "assistant", "content": "Pizza, then the puppet theatre."},
    ],
    "follow_up": "And then the night club at eleven.",
    "label": "IC",
    "rationale": PAIR,
    "speaking": "participants",
    "task": "planning",
}
FOREIGN: dict[str, Any] = {
    "conversation": {
        "messages": [
            {"from": "human", "text": {"value": "Plan an evening for my kids."}},
            {"from": "gpt", "text": {"value": "Pizza, then the puppet theatre."}},
        ]
    },
    "next_query": "And then the night club at eleven.",
    "annotation": {"category": 2, "reason": "A night club is no place for children."},
}
FOREIGN_FIELDS = Fields(
    history="conversation.messages",
    role="from",
    content="text.value",
    user_role=("Human",),
    assistant_role=("gpt",),
    follow_up="next_query",
    label="annotation.category",
    labels={Label.ND: ("0", "normal"), Label.ER: ("1",), Label.IC: ("2",)},
    rationale_text="annotation.reason",
)
USER, ANSWER = RECORD["history"]


def written(folder: Path, *records: object, name: str = "own.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in RECORD.items() if key not in keys}


def test_the_documented_shape(tmp_path: Path) -> None:
    bench = read_bench([written(tmp_path, RECORD | {"system": "Be brief.", "annotator": 7})])
    assert bench.refused == ()
    assert bench.items == (
        BenchItem(
            id="one",
            subset="Own-UC",
            language="en",
            history=Dialogue(
                turns=(Turn(user="Plan an evening for my kids.", assistant="Pizza, then the puppet theatre."),),
                system="Be brief.",
            ),
            follow_up="And then the night club at eleven.",
            label=Label.IC,
            rationale=Rationale(
                historical=(
                    GoldConstraint(type="implicit", dimension="audience", value="children", evidence="my kids", turn=1),
                ),
                new=(
                    GoldConstraint(type="explicit", dimension="place", value="a night club", evidence="the night club"),
                ),
                text="A night club is no place for children.",
            ),
            speaking=Speaking.PARTICIPANTS,
            task="planning",
        ),
    )
    assert bench.items[0].relation is Relation.H_I_N_E


@pytest.mark.parametrize("label", ["IC", "ic", "Implicit Conflict", "implicit conflict", " IMPLICIT_CONFLICT "])
def test_labels_in_words(tmp_path: Path, label: str) -> None:
    assert read_bench([written(tmp_path, RECORD | {"label": label})]).items[0].label is Label.IC


def test_what_may_be_missing(tmp_path: Path) -> None:
    record = without("id", "subset", "language", "speaking", "task")
    item = read_bench([written(tmp_path, record)]).items[0]
    assert (item.subset, item.language, item.speaking, item.task) == ("own", "en", None, None)
    assert len(item.id) == 16
    shouted = record | {"follow_up": "AND then the night  club at eleven."}
    other = record | {"follow_up": "And then the night club at twelve."}
    ids = [read_bench([written(tmp_path, row, name="b.jsonl")]).items[0].id for row in (shouted, other)]
    assert ids[0] == item.id != ids[1]


@pytest.mark.parametrize(
    ("given_language", "text", "language"),
    [
        ("Chinese", "Plan it.", "zh"),
        ("zh-CN", "Plan it.", "zh"),
        (None, "帮我安排一个适合孩子的晚上，吃完饭去看木偶戏。", "zh"),
        (None, "Bitte plane einen Abend für meine Kinder, mit Essen und Theater.", "de"),
        (None, "```python\nprint('hello world, this is English')\n```\n这段代码是什么意思？请解释一下。", "zh"),
        (None, "123 ?", "und"),
    ],
)
def test_languages(tmp_path: Path, given_language: str | None, text: str, language: str) -> None:
    history = [{"role": "user", "content": text}, {"role": "assistant", "content": "This answer is in English."}]
    record = RECORD | {"language": given_language, "history": history, "follow_up": text}
    assert read_bench([written(tmp_path, record)]).items[0].language == language


def test_a_system_message_in_the_history(tmp_path: Path) -> None:
    history = [{"role": "system", "content": "Be kind."}, *RECORD["history"]]
    first = read_bench([written(tmp_path, RECORD | {"history": history})]).items[0]
    assert first.history.system == "Be kind."
    both = read_bench([written(tmp_path, RECORD | {"history": history, "system": "Be brief."})]).items[0]
    assert both.history.system == "Be brief.\n\nBe kind."


def test_texts_are_cleaned(tmp_path: Path) -> None:
    history = [{"role": "user", "content": "Cafe\u0301\r\nplease\x00"}, ANSWER]
    item = read_bench([written(tmp_path, RECORD | {"history": history, "follow_up": "\ud800!"})]).items[0]
    assert item.history.turns[0].user == "Café\nplease"
    assert item.follow_up == "�!"


def test_other_names(tmp_path: Path) -> None:
    item = read_bench([written(tmp_path, FOREIGN)], FOREIGN_FIELDS).items[0]
    assert item.history == Dialogue(
        turns=(Turn(user="Plan an evening for my kids.", assistant="Pizza, then the puppet theatre."),)
    )
    assert (item.follow_up, item.label) == ("And then the night club at eleven.", Label.IC)
    assert item.rationale == Rationale(text="A night club is no place for children.")


def test_the_last_user_message_is_the_follow_up(tmp_path: Path) -> None:
    record = without("follow_up")
    record["history"] = [*RECORD["history"], {"role": "user", "content": "Then the night club."}]
    item = read_bench([written(tmp_path, record)], Fields(follow_up="")).items[0]
    assert (item.follow_up, len(item.history.turns)) == ("Then the night club.", 1)


@pytest.mark.parametrize("name", ["own.jsonl.gz", "own.json", "own.parquet"])
def test_other_kinds_of_file(tmp_path: Path, name: str) -> None:
    lines = written(tmp_path, RECORD, RECORD | {"id": "two", "label": "ND", "rationale": None}, RECORD | {"label": "?"})
    rows = [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
    path = tmp_path / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.read_bytes()))
    elif name.endswith(".json"):
        path.write_text(json.dumps(rows, indent=1), "utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    bench, expected = read_bench([path]), read_bench([lines])
    assert bench.items == expected.items
    assert [item.id for item in bench.items] == ["one", "two"]
    assert [(one.file, one.line) for one in bench.refused] == [(str(path), 3)]


def test_folders_and_globs(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    written(tmp_path / "deep", RECORD, name="a.jsonl")
    written(tmp_path, RECORD | {"id": "two"}, name="b.jsonl")
    written(tmp_path, name="notes.txt")
    assert {item.id for item in read_bench([tmp_path]).items} == {"one", "two"}
    assert {item.id for item in read_bench([tmp_path / "*.jsonl"]).items} == {"two"}


REFUSED: list[tuple[object, str]] = [
    ([1, 2], "a record is a JSON object, this is a list"),
    (without("label"), "no field `label`; the record has id, .*, follow_up, .*task"),
    (RECORD | {"label": "conflict"}, "`label` is 'conflict', which is no label; labels are nd, normal dialogue, er"),
    (RECORD | {"history": []}, "`history` is empty"),
    (RECORD | {"history": "User: hi"}, "`history` is no list of messages but a text"),
    (RECORD | {"history": [USER, USER, ANSWER]}, "doesn't alternate .* two messages of the user follow each other"),
    (RECORD | {"history": [ANSWER, USER]}, "doesn't alternate .* it begins with the assistant"),
    (RECORD | {"history": [USER, ANSWER, USER]}, "ends with the user, .* --set fields.follow_up=''"),
    (RECORD | {"history": [{"role": "system", "content": "Be kind."}]}, "no message before the follow-up"),
    (RECORD | {"history": [{"role": "user", "content": " "}, ANSWER]}, "message 1 of `history` is empty"),
    (RECORD | {"history": [{"role": "bot", "content": "hi"}]}, "message 1 .* is of `bot`; name it in fields.user_role"),
    (RECORD | {"history": [{"from": "user", "content": "a"}]}, "message 1 .* no text in `role`; it has from, content"),
    (RECORD | {"history": ["hi"]}, "message 1 of `history` is no object but a text"),
    (RECORD | {"follow_up": "  "}, r"the follow-up \(`follow_up`\) is empty"),
    (RECORD | {"follow_up": ["hi"]}, "`follow_up` is no text but a list"),
    (without("rationale"), "an implicit conflict needs a rationale; no field `rationale.text`"),
    (RECORD | {"label": "ND"}, "a normal dialogue has no rationale"),
    (RECORD | {"label": "ER"}, "its constraints are of types H_I_N_E, which is not ER"),
    (RECORD | {"speaking": "mood"}, "speaking: Input should be 'setting_and_scene'"),
    (RECORD | {"rationale": {"new": ["club"]}}, "`rationale.new` is no list of objects with type, dimension"),
    (RECORD | {"rationale": {"new": [{"type": "stated"}], "text": "a"}}, "rationale.new.0.type: Input should be"),
    (RECORD | {"id": "good"}, r"the id good is already that of .*own.jsonl:1; .* --set fields.id=''"),
]


@pytest.mark.parametrize(("record", "reason"), REFUSED)
def test_what_is_refused(tmp_path: Path, record: object, reason: str) -> None:
    path = written(tmp_path, RECORD | {"id": "good"}, record)
    bench = read_bench([path])
    assert [item.id for item in bench.items] == ["good"]
    assert [(one.file, one.line) for one in bench.refused] == [(str(path), 2)]
    assert re.search(reason, bench.refused[0].reason), bench.refused[0].reason


def test_broken_lines_are_refused_and_blank_ones_are_not(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(b'{"id": \n\n' + json.dumps(RECORD).encode() + b'\n{"id": "\xff"}\n')
    bench = read_bench([path])
    assert len(bench.items) == 1
    assert [one.line for one in bench.refused] == [1, 4]
    assert all("no valid JSON" in one.reason for one in bench.refused)


def test_foreign_names_are_named(tmp_path: Path) -> None:
    record = {"dialogue": {"messages": []}, "followup": "Hi.", "category": "IC"}
    with pytest.raises(RecordsError) as error:
        read_bench([written(tmp_path, record, record)])
    message = str(error.value)
    assert "refused records: 2" in message
    assert (
        "own.jsonl:1: no field `history`, `follow_up`, `label`; the record has dialogue.messages, followup" in message
    )
    assert "nearest to `history` is dialogue.messages: --set fields.history=dialogue.messages" in message
    assert "nearest to `follow_up` is followup: --set fields.follow_up=followup" in message
    assert "say where `label` is with --set fields.label=..." in message


def test_a_field_that_nobody_has_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, FOREIGN, FOREIGN)
    fields = FOREIGN_FIELDS.model_copy(update={"subset": "origin"})
    with pytest.raises(RecordsError, match=r"fields.subset \(origin\): none of the records has it"):
        read_bench([path], fields)


def test_fields_that_contradict_each_other() -> None:
    with pytest.raises(ValidationError, match="the value 1 is given twice"):
        Fields(labels={Label.ND: ("1",), Label.IC: ("1",)})
    with pytest.raises(ValidationError, match="`history` and `label` name fields"):
        Fields(label="")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("own.json", b'{"id": 1}', "a .json is an array of items"),
        ("own.json", b"[{", "can't be read"),
        ("own.parquet", b"PAR", "can't be read"),
        ("own.jsonl.gz", gzip.compress(b"{}" * 99)[:-9], "can't be read"),
        ("own.jsonl", b"\n", "there is no record at all"),
        ("own.csv", b"id,label", "can't tell what this file holds"),
    ],
)
def test_files_of_no_use(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RecordsError, match=message):
        read_bench([tmp_path / name])


def test_a_path_with_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="nothing: no file ending in"):
        read_bench([tmp_path / "nothing"])


TEXT = st.text(max_size=40).map(clean)
SAID = TEXT.filter(str.strip)
NAME = SAID.map(str.strip).filter(bool)
GOLD = st.builds(
    GoldConstraint,
    type=st.sampled_from(["explicit", "implicit"]),
    dimension=SAID,
    value=SAID,
    evidence=TEXT,
    turn=st.none() | st.integers(1, 9),
)


@st.composite
def bench_items(draw: st.DrawFn) -> BenchItem:
    pair = st.tuples(GOLD, GOLD).map(lambda both: Rationale(historical=both[:1], new=both[1:]))
    rationale = draw(st.none() | st.builds(Rationale, text=SAID) | pair)
    label = Label.ND if rationale is None else draw(st.sampled_from([Label.ER, Label.IC]))
    if rationale and rationale.new:
        label = Relation.of(rationale.historical[0].type, rationale.new[0].type).label
    return BenchItem(
        id=draw(NAME),
        subset=draw(NAME),
        language=draw(st.sampled_from(["en", "zh", "de"])),
        history=Dialogue(
            turns=tuple(draw(st.lists(st.builds(Turn, user=SAID, assistant=SAID), min_size=1, max_size=4))),
            system=draw(st.just("") | SAID),
        ),
        follow_up=draw(SAID),
        label=label,
        rationale=rationale,
        speaking=draw(st.none() | st.sampled_from(Speaking)),
        task=draw(st.none() | NAME),
    )


@settings(deadline=None)  # every file is synced to the disk
@given(st.lists(bench_items(), min_size=1, max_size=4, unique_by=lambda item: item.id))
def test_what_is_written_is_read_back(items: list[BenchItem]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "items.jsonl"
        write_bench(items, path)
        bench = read_bench([path])
    assert bench.items == tuple(items)
    assert bench.refused == ()


# The benchmark made by hand.


def hand_made(*labels: Label) -> list[BenchItem]:
    bench = read_bench([HAND_MADE])
    assert bench.refused == ()
    return [item for item in bench.items if item.label in (labels or tuple(Label))]


def test_the_file_is_as_it_would_be_written(tmp_path: Path) -> None:
    write_bench(hand_made(), tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == HAND_MADE.read_bytes()


def test_labels_languages_and_subsets() -> None:
    items = hand_made()
    assert Counter((item.subset, item.label) for item in items) == {
        (subset, label): 4 for subset in ("WildChat-UC", "LMSYS-UC", "ShareGPT-UC") for label in Label
    }
    assert Counter((item.language, item.label) for item in items) == {
        (language, label): 6 for language in ("en", "zh") for label in Label
    }
    assert {item.language for item in items if item.subset == "LMSYS-UC"} == {"en"}
    assert {item.task for item in items} == set(CATEGORIES)
    found = {item.id: item.language for item in read_bench([HAND_MADE], Fields(language="")).items}
    assert found == {item.id: item.language for item in items}


def test_implicit_conflicts() -> None:
    items = hand_made(Label.IC)
    assert Counter(item.relation for item in items) == {
        Relation.H_I_N_E: 4,
        Relation.H_E_N_I: 4,
        Relation.H_I_N_I: 4,
    }
    for relation in {item.relation for item in items}:
        assert {item.language for item in items if item.relation is relation} == {"en", "zh"}
    assert {item.speaking for item in items} == set(Speaking)
    for item in items:
        assert not [signal for signal in SIGNALS if signal in item.follow_up.casefold()], item.id


def test_explicit_revisions_are_of_stated_constraints() -> None:
    assert {item.relation for item in hand_made(Label.ER)} == {Relation.H_E_N_E}


def test_evidence_is_verbatim_and_often_far_away() -> None:
    distances = []
    for item in hand_made(Label.ER, Label.IC):
        assert item.rationale is not None
        assert item.rationale.text
        for constraint in item.rationale.historical:
            assert constraint.turn is not None
            assert constraint.evidence in item.history.turns[constraint.turn - 1].user, item.id
        for constraint in item.rationale.new:
            assert constraint.evidence in item.follow_up, item.id
        turn = item.rationale.historical[0].turn
        assert turn is not None
        distances.append(len(item.history.turns) + 1 - turn)
    assert len(set(distances)) >= 3
    assert sum(distance >= 2 for distance in distances) >= len(distances) / 3


def test_answers_are_no_placeholders() -> None:
    items = hand_made()
    assert {len(item.history.turns) for item in items} == {2, 3, 4, 5}
    for item in items:
        for turn in item.history.turns:
            size = len(turn.assistant) / 1.7 if item.language == "zh" else len(turn.assistant.split())
            assert 55 <= size <= 400, item.id
    assert len({turn.assistant for item in items for turn in item.history.turns}) == sum(
        len(item.history.turns) for item in items
    )
