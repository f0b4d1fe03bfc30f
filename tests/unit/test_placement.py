"""How many workers a job gets and what each reserves, on clusters of all sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.placement import SLOTS_PER_PROCESS, DoesNotFit, Placement, place
from synuc.config import BatchEngine, Cluster, OpenAIEngine, VllmEngine


def vllm(gpus: int = 1, in_flight: int = 64) -> VllmEngine:
    return VllmEngine(kind="vllm", model="some/model", tensor_parallel_size=gpus, max_in_flight=in_flight)


def endpoint(in_flight: int = 64) -> OpenAIEngine:
    return OpenAIEngine(kind="openai", model="some-model", max_in_flight=in_flight)


def test_an_engine_for_every_gpu_and_none_beyond() -> None:
    assert place([vllm()], Cluster(), [{"CPU": 64, "GPU": 4}]) == Placement(4, 1.0, 1.0, 96)


def test_an_engine_on_several_gpus_gets_them_together() -> None:
    assert place([vllm(2)], Cluster(), [{"CPU": 64, "GPU": 5}]) == Placement(2, 1.0, 2.0, 96)


def test_an_engine_never_spans_nodes() -> None:
    assert place([vllm(4)], Cluster(), [{"CPU": 64, "GPU": 6}, {"CPU": 64, "GPU": 6}, {"CPU": 8}]).workers == 2
    with pytest.raises(DoesNotFit, match="of one node"):
        place([vllm(4)], Cluster(), [{"CPU": 64, "GPU": 2}, {"CPU": 64, "GPU": 2}])


def test_the_engines_of_all_roles_fit_into_each_worker() -> None:
    placed = place([vllm(2), vllm(1, in_flight=128)], Cluster(), [{"CPU": 64, "GPU": 6}])
    assert placed == Placement(2, 1.0, 3.0, 192)


def test_without_gpus_an_engine_gets_the_machine() -> None:
    assert place([vllm(in_flight=16)], Cluster(), [{"CPU": 8}]) == Placement(1, 1.0, 0.0, 24)


def test_an_engine_that_fits_nowhere_is_said_at_once() -> None:
    with pytest.raises(DoesNotFit, match=r"want 4 GPUs of one node together and the largest has 2"):
        place([vllm(4)], Cluster(), [{"CPU": 8, "GPU": 2}])
    with pytest.raises(DoesNotFit):
        place([vllm(1), vllm(2)], Cluster(workers=1), [{"CPU": 8, "GPU": 2}])


def test_an_endpoint_needs_a_process_for_its_calls_and_leaves_a_cpu_for_reading() -> None:
    assert place([endpoint(64)], Cluster(), [{"CPU": 8}]) == Placement(1, 1.0, 0.0, 96)
    assert place([endpoint(512)], Cluster(), [{"CPU": 8}]) == Placement(4, 1.0, 0.0, 192)
    assert place([endpoint(512)], Cluster(), [{"CPU": 3}]) == Placement(2, 1.0, 0.0, 384)
    assert place([endpoint(512)], Cluster(), [{"CPU": 1}]).workers == 1


def test_an_endpoint_beside_an_engine_on_gpus_takes_no_workers_of_its_own() -> None:
    placed = place([vllm(in_flight=32), endpoint(1000)], Cluster(), [{"CPU": 64, "GPU": 2}])
    assert placed == Placement(2, 1.0, 1.0, 750)


def test_more_workers_than_cpus_leave_room_for_reading() -> None:
    assert place([endpoint()], Cluster(workers=2), [{"CPU": 2}]) == Placement(2, 0.5, 0.0, 48)
    assert place([endpoint()], Cluster(workers=1), [{"CPU": 1}]).cpus == 0.0


@given(
    workers=st.integers(1, 60),
    nodes=st.lists(st.fixed_dictionaries({"CPU": st.integers(0, 16)}), min_size=1, max_size=5),
)
def test_a_whole_cpu_is_left_wherever_the_workers_go(workers: int, nodes: list[dict[str, float]]) -> None:
    cpus = place([endpoint()], Cluster(workers=workers), nodes).cpus
    assert 0 <= cpus <= 1
    if cpus:
        # So many workers could take the last whole CPU of every node.
        assert sum(int((node["CPU"] - 1) / cpus + 1e-9) + 1 for node in nodes if node["CPU"]) > workers


def test_workers_on_gpus_find_their_share_of_a_cpu() -> None:
    nodes = [{"CPU": 4, "GPU": 4}, {"CPU": 4, "GPU": 4}]
    assert place([vllm()], Cluster(), nodes) == Placement(8, 0.5, 1.0, 96)
    assert place([vllm()], Cluster(), [{"CPU": 2, "GPU": 8}, {"CPU": 64}]).cpus == 0.25


def batch(in_flight: int = 50_000) -> BatchEngine:
    return BatchEngine(kind="batch", model="some-model", max_in_flight=in_flight)


def test_batch_files_have_one_worker_in_which_all_dialogues_wait() -> None:
    assert place([batch()], Cluster(), [{"CPU": 64}]) == Placement(1, 1.0, 0.0, 50_000)
    assert place([batch(), endpoint(1000)], Cluster(), [{"CPU": 64}]) == Placement(1, 1.0, 0.0, 50_000)
    assert place([batch(10), endpoint(1000)], Cluster(), [{"CPU": 64}]).dialogues_in_flight == 1500
    assert place([batch(), vllm()], Cluster(), [{"CPU": 64, "GPU": 4}]) == Placement(1, 1.0, 1.0, 50_000)
    assert place([batch()], Cluster(workers=1, dialogues_in_flight=7), [{"CPU": 64}]).dialogues_in_flight == 7
    with pytest.raises(DoesNotFit, match=r"leave cluster\.workers out"):
        place([batch(), endpoint()], Cluster(workers=2), [{"CPU": 64}])


def test_a_run_that_may_grow_begins_with_what_is_there_and_leaves_room_for_reading() -> None:
    assert place([vllm()], Cluster(max_workers=8), [{"CPU": 64, "GPU": 4}]) == Placement(4, 1.0, 1.0, 96)
    assert place([vllm()], Cluster(max_workers=3), [{"CPU": 64, "GPU": 4}]).workers == 3
    assert place([vllm()], Cluster(workers=1, max_workers=4), [{"CPU": 4, "GPU": 4}]) == Placement(1, 0.5, 1.0, 96)
    assert place([vllm()], Cluster(workers=1), [{"CPU": 4, "GPU": 4}]).cpus == 1.0


def test_workers_that_would_only_share_are_not_added() -> None:
    with pytest.raises(DoesNotFit, match=r"leave cluster\.max_workers out and raise engine\.max_in_flight"):
        place([endpoint()], Cluster(max_workers=8), [{"CPU": 64}])
    assert place([vllm(), endpoint()], Cluster(max_workers=8), [{"CPU": 64, "GPU": 2}]).workers == 2
    with pytest.raises(DoesNotFit, match=r"one worker writes all batch files"):
        place([batch()], Cluster(max_workers=2), [{"CPU": 64}])


def test_what_the_settings_say_wins() -> None:
    placed = place([vllm()], Cluster(workers=7, dialogues_in_flight=5), [{"CPU": 64, "GPU": 4}])
    assert placed == Placement(7, 1.0, 1.0, 5)


@given(
    engines=st.lists(
        st.builds(vllm, st.integers(1, 8), st.integers(1, 256)) | st.builds(endpoint, st.integers(1, 4096)),
        min_size=1,
        max_size=3,
    ),
    cpus=st.integers(1, 256),
    gpus=st.integers(0, 64),
)
def test_what_is_placed_fits_and_keeps_every_slot_busy(
    engines: list[VllmEngine | OpenAIEngine], cpus: int, gpus: int
) -> None:
    try:
        placed = place(engines, Cluster(), [{"CPU": cpus, "GPU": gpus}])
    except DoesNotFit:
        assert sum(e.tensor_parallel_size for e in engines if isinstance(e, VllmEngine)) > gpus > 0
        return
    assert placed.workers >= 1
    assert placed.workers * placed.gpus <= gpus
    if all(isinstance(engine, OpenAIEngine) for engine in engines):
        assert placed.workers <= max(1, cpus - 1)
        assert placed.workers <= -(-max(engine.max_in_flight for engine in engines) // SLOTS_PER_PROCESS)
    for engine in engines:
        dialogues = placed.dialogues_in_flight * (placed.workers if isinstance(engine, OpenAIEngine) else 1)
        assert dialogues >= engine.max_in_flight
