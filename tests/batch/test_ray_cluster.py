"""Runs on a Ray cluster of two workers write the same bytes as local runs."""

import json
import os
import signal
import threading
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from page4d.batch import ray as ray_cluster
from page4d.batch.jobs import SceneJob
from page4d.batch.ray import Worker
from page4d.errors import InterruptedRunError
from page4d_cli.app import run
from page4d_cli.stopping import stops_cleanly
from tests.cli.clips import write_scene
from tests.run.test_reconstruct import bytes_of

# Found but not imported: Ray reads its settings on import.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an optional dependency")]

NETWORK = ("--untrained", "--preset", "mv-tiny", "--size", "28", "--no-preview")
CHUNKS = ("--chunk", "2", "--overlap", "1")


@pytest.fixture(scope="module")
def cluster():
    """Start two workers of one CPU each, for all tests of this file: starting takes seconds."""
    ray = import_module("ray")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield ray
    ray.shutdown()


def reconstruct(*arguments: object) -> int:
    return run(["reconstruct", *map(str, arguments), *NETWORK])


@pytest.mark.usefixtures("cluster")
class TestOnTwoWorkers:
    def test_chunks_predicted_on_workers_are_equal_to_local_ones(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # the working directory of the workers is another
        scene = write_scene(Path("scene"), frames=8)
        assert reconstruct(scene, "--out", tmp_path / "local", *CHUNKS) == 0
        assert reconstruct(scene, "--out", tmp_path / "cluster", *CHUNKS, "--distributed", "ray") == 0
        assert bytes_of(tmp_path / "cluster") == bytes_of(tmp_path / "local")
        records = [json.loads((tmp_path / where / "run.json").read_text()) for where in ("local", "cluster")]
        assert len(records[0]["chunks"]) == 7
        assert records[0]["settings"] == records[1]["settings"]

    def test_scenes_on_workers_are_equal_to_local_ones_and_failures_are_recorded(self, tmp_path):
        scenes = [write_scene(tmp_path / "takes" / name, frames=2) for name in ("one", "two")]
        ended = reconstruct(
            *scenes, tmp_path / "takes" / "absent", "--out", tmp_path / "cluster", "--distributed", "ray"
        )
        assert ended == 8
        assert reconstruct(scenes[1], "--out", tmp_path / "local") == 0
        assert bytes_of(tmp_path / "cluster" / "two") == bytes_of(tmp_path / "local")
        record = json.loads((tmp_path / "cluster" / "batch.json").read_text())
        assert [scene["status"] for scene in record["scenes"]] == ["complete", "complete", "failed"]
        assert record["scenes"][2]["exit_code"] == 2

    def test_an_undecodable_frame_ends_the_run_with_the_same_error_as_locally(self, tmp_path, capsys):
        scene = write_scene(tmp_path / "scene", frames=8)
        # Damaged beyond the part that opening reads, so that decoding on a worker fails.
        video = scene / "cam01.mp4"
        data = bytearray(video.read_bytes())
        middle = len(data) // 3
        data[middle : middle + 400] = bytes(400)
        video.write_bytes(data)
        local = reconstruct(scene, "--out", tmp_path / "local", *CHUNKS)
        local_error = capsys.readouterr().err.splitlines()[-2:]
        ended = reconstruct(scene, "--out", tmp_path / "cluster", *CHUNKS, "--distributed", "ray")
        assert (ended, capsys.readouterr().err.splitlines()[-2:]) == (local, local_error)


def test_a_signal_ends_the_wait_for_a_worker(cluster):
    endless = cluster.remote(num_cpus=1)(lambda: time.sleep(600)).remote()
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    begin = time.monotonic()
    with pytest.raises(InterruptedRunError) as caught, stops_cleanly():
        ray_cluster._next_done(cluster, [endless])
    cluster.cancel(endless, force=True)
    assert caught.value.exit_code == 143
    assert time.monotonic() - begin < 5


def test_a_worker_that_dies_again_and_again_is_no_internal_error(cluster):
    died = cluster.remote(num_cpus=1, max_retries=0)(lambda: os.kill(os.getpid(), signal.SIGKILL)).remote()
    with pytest.raises(cluster.exceptions.RayError) as caught:
        ray_cluster._result(cluster, ray_cluster._next_done(cluster, [died]))
    outcome = ray_cluster._lost(SceneJob(scene=Path("scene"), out=Path("out")), caught.value)
    assert outcome.exit_code == 6
    assert "possibly out of memory" in outcome.error
    assert "--memory" in outcome.hint


def test_the_number_of_workers_follows_from_the_resources_of_the_cluster():
    assert Worker(threads=2, gpu=False).max_workers({"CPU": 9, "GPU": 3}) == 4
    assert Worker(threads=2, gpu=True).max_workers({"CPU": 9, "GPU": 3}) == 3
    assert Worker(threads=16, gpu=False).max_workers({"CPU": 4}) == 1
