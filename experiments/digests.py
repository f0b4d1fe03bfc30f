"""What decides the content of files that an experiment reads: seeds on this machine, and benchmarks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pipelines.readers import SeedError, local_files

CHUNK_BYTES = 1 << 20


def seed_files(paths: tuple[str, ...]) -> dict[str, str]:
    """What decides the seeds besides their paths: the content of files on this machine, if there are any."""
    try:
        files = local_files(paths)
    except SeedError:  # the synthesis will say so, if it is ever carried out
        return {}
    return {"seed_files": _hashed(files)} if files else {}


def bench_digest(bench: Sequence[Path]) -> str | None:
    """Sixteen hex digits over the bytes of benchmark files, or of all files in a folder; None if one isn't there."""
    found = [bench_files(path) for path in bench]
    return _hashed([file for files in found for file in files]) if all(found) else None


def bench_files(path: Path) -> list[Path]:
    """A file itself, or all files in a folder; none if nothing is there."""
    return [path] if path.is_file() else sorted(file for file in path.glob("*") if file.is_file())


def _hashed(files: Sequence[Path]) -> str:
    """Sixteen hex digits over names and bytes, which are never all in memory."""
    whole = hashlib.sha256()
    for path in files:
        whole.update(path.name.encode())
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                whole.update(chunk)
    return whole.hexdigest()[:16]
