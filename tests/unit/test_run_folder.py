"""What is left of the seeds when a run goes on."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.run_folder import RunFolder


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6), data=st.data())
def test_the_dialogues_left_are_those_that_are_not_finished(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    folder, ids = RunFolder(tmp_path_factory.mktemp("run")), [f"s{n}" for n in range(sum(sizes))]
    rest = iter(ids)
    for size in sizes:
        folder.write_part("seeds", [{"id": next(rest), "seed": "{}"} for _ in range(size)])
    finished = data.draw(st.sets(st.sampled_from(ids)))
    fresh, begun, done = folder.begun_seeds(pa.array(sorted(finished), pa.string()))
    of = {part: set(pq.read_table(part)["id"].to_pylist()) for part in folder.parts("seeds")}
    left = [id for part in fresh for id in of[part]] + [id for part in begun for id in of[part] if id not in set(done)]
    assert sorted(left) == sorted(set(ids) - finished)
    # No file is read for nothing, and none is filtered by more than its own.
    assert all(of[part] - finished for part in (*fresh, *begun))
    assert set(done) == finished & {id for part in begun for id in of[part]}
