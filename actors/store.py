"""A folder on object storage (or any file system that pyarrow or fsspec knows), by its URL: whole objects in and out.

An object is there as a whole or not at all. Object stores promise that of each put; elsewhere an object is written
under a hidden name and moved. Keys come from the environment, as each store's own tools read them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from synuc.folder import RunError, cache_folder

T = TypeVar("T")

PUT_IS_ATOMIC = frozenset({"s3", "gcs", "abfs"})
PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds before a request that failed is made again: stores are overloaded now and then."""
HOPELESS = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "NO_SUCH_BUCKET")
"""What pyarrow says of requests that waiting doesn't mend."""


class Mark(NamedTuple):
    """By what two versions of a file are told apart: size in bytes, and time of change in whole seconds."""

    size: int
    changed: int


def is_url(place: str | Path) -> bool:
    """Whether a place is a URL, and not a folder of this machine."""
    return "://" in str(place)


class Store:
    """The objects under a URL. Their names are paths relative to it; hidden ones are not listed."""

    def __init__(self, url: str) -> None:
        """Raises RunError: the URL is of no known kind, or holds a secret. Asks no server."""
        parts = urlsplit(url)
        if parts.password or "secret" in parts.query:
            raise RunError(f"{parts.scheme}://...: leave the keys out of the URL and set them in the environment")
        self.url = url
        query = parts.query
        if parts.scheme == "s3":
            # Small objects in one request instead of three.
            query = "&".join(filter(None, [query, "allow_delayed_open=true"]))
        try:
            self.files, root = fs.FileSystem.from_uri(parts._replace(query=query).geturl())
        except (ValueError, ImportError, OSError) as error:
            raise RunError(f"can't use {url}: {error}; give a folder, or a URL like s3://bucket/runs/first") from None
        self.root = root.rstrip("/")
        self._own = uuid.uuid4().hex
        self._answered = False

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.root).name

    @property
    def working_copy(self) -> Path:
        """The folder of this machine in which the user works with what is at the URL."""
        digest = hashlib.sha256(self.url.rstrip("/").encode()).hexdigest()
        return cache_folder() / "runs" / digest[:16] / self.name

    def path(self, name: str) -> str:
        """An object's path in the file system `files`."""
        return f"{self.root}/{name}" if name else self.root

    def put(self, name: str, data: bytes | Path) -> Mark:
        """Make `data`, or a file, the object `name`. Its mark, as the store has it.

        Raises:
            OSError: the store doesn't answer or refuses it; what was there before is still there.
        """
        return self._tried(lambda: self._put(name, data))

    def _put(self, name: str, data: bytes | Path) -> Mark:
        whole = pa.memory_map(str(data)).read_buffer() if isinstance(data, Path) else data
        target = written = self.path(name)
        if self.files.type_name not in PUT_IS_ATOMIC:
            folder, _, last = target.rpartition("/")
            self.files.create_dir(folder, recursive=True)
            written = f"{folder}/.{last}.{self._own}"
        # In one write: closing a stream that failed halfway would make an object of what had been sent.
        with self.files.open_output_stream(written) as stream:
            stream.write(whole)
        if written != target:
            self.files.move(written, target)
        return _mark(self.files.get_file_info(target))

    def get(self, name: str) -> bytes:
        """An object's bytes.

        Raises:
            FileNotFoundError: there is none of that name.
            OSError: the store doesn't answer or refuses it.
        """

        def read() -> bytes:
            with self.files.open_input_stream(self.path(name)) as stream:
                data: bytes = stream.read()
                return data

        return self._tried(read)

    def fetch(self, name: str, target: Path) -> None:
        """Make an object the file `target`, whole or not at all, with the object's time of change."""
        hidden = target.with_name(f".{target.name}")
        target.parent.mkdir(parents=True, exist_ok=True)

        def copy() -> None:
            mark = _mark(self.files.get_file_info(self.path(name)))
            with self.files.open_input_stream(self.path(name)) as stream, hidden.open("wb") as file:
                shutil.copyfileobj(stream, file, 2**22)
                file.flush()
                os.fsync(file.fileno())
            set_mark(hidden, mark)
            hidden.replace(target)

        self._tried(copy)

    def list(self, under: str = "") -> dict[str, Mark]:
        """All objects, or those under a name, with their marks."""
        selector = fs.FileSelector(self.path(under), recursive=True, allow_not_found=True)
        found = self._tried(lambda: self.files.get_file_info(selector))
        names = {info.path[len(self.root) + 1 :]: info for info in found if info.type == fs.FileType.File}
        return {name: _mark(info) for name, info in names.items() if not is_hidden(name)}

    def delete(self, name: str) -> None:
        """Remove an object."""
        self._tried(lambda: self.files.delete_file(self.path(name)))

    def delete_all(self, under: str = "") -> None:
        """Remove all objects under a name."""
        if self.list(under):
            self._tried(lambda: self.files.delete_dir(self.path(under)))

    def _tried(self, action: Callable[[], T]) -> T:
        """What `action` gives. It is repeated for a while if the store has answered before: it is the right one."""
        for pause in PAUSES if self._answered else ():
            try:
                return action()
            except OSError as error:
                # Local file systems have error numbers, and mean what they say.
                if error.errno is not None or any(word in str(error) for word in HOPELESS):
                    raise
                time.sleep(pause)
        try:
            result = action()
        except FileNotFoundError:
            self._answered = True
            raise
        self._answered = True
        return result


def is_hidden(name: str) -> bool:
    """Whether a file is one that nobody is to see: written just now, or a lock."""
    return any(part.startswith(".") for part in name.split("/"))


def mark_of(path: Path) -> Mark:
    """The mark of a file of this machine."""
    status = path.stat()
    return Mark(status.st_size, int(status.st_mtime))


def set_mark(path: Path, mark: Mark) -> None:
    """Give a file the time of change of its object, so that the two are known to be one."""
    os.utime(path, (mark.changed, mark.changed))


def _mark(info: fs.FileInfo) -> Mark:
    if info.type == fs.FileType.NotFound:
        raise FileNotFoundError(2, "no such object", info.path)
    return Mark(info.size, (info.mtime_ns or 0) // 10**9)
