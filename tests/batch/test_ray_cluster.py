"""Runs on a Ray cluster of two workers write the same bytes as local runs."""

import json
import sys
from pathlib import Path

import pytest

from page4d.batch.ray_cluster import WorkerResources, joined_cluster, parse_distributed
from page4d.errors import CapabilityError, UsageError
from page4d_cli.app import run
from tests.cli.clips import write_scene

ray = pytest.importorskip("ray", reason="Ray is an optional dependency")

NETWORK = ("--untrained", "--preset", "mv-tiny", "--size", "28", "--no-preview")
CHUNKS = ("--chunk", "2", "--overlap", "1")


@pytest.fixture(scope="module")
def cluster():
    """Start two workers of one CPU each, for all tests of this file: starting takes seconds."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


def contents(out: Path) -> dict[str, bytes]:
    files = (path for path in sorted(out.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in files
        if path.name not in ("run.json", ".page4d.lock") and "state" not in path.parts
    }


def reconstruct(*arguments: object) -> int:
    return run(["reconstruct", *map(str, arguments), *NETWORK])


@pytest.mark.usefixtures("cluster")
class TestOnTwoWorkers:
    def test_chunks_predicted_on_workers_are_equal_to_local_ones(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # the working directory of the workers is another
        scene = write_scene(Path("scene"), frames=8)
        assert reconstruct(scene, "--out", tmp_path / "local", *CHUNKS) == 0
        assert reconstruct(scene, "--out", tmp_path / "cluster", *CHUNKS, "--distributed", "ray") == 0
        assert contents(tmp_path / "cluster") == contents(tmp_path / "local")
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
        assert contents(tmp_path / "cluster" / "two") == contents(tmp_path / "local")
        record = json.loads((tmp_path / "cluster" / "batch.json").read_text())
        assert [scene["status"] for scene in record["scenes"]] == ["complete", "complete", "failed"]
        assert record["scenes"][2]["exit_code"] == 2

    @pytest.mark.slow
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


def test_the_number_of_workers_follows_from_the_resources_of_the_cluster():
    assert WorkerResources(threads=2, gpu=False).max_workers({"CPU": 9, "GPU": 3}) == 4
    assert WorkerResources(threads=2, gpu=True).max_workers({"CPU": 9, "GPU": 3}) == 3
    assert WorkerResources(threads=16, gpu=False).max_workers({"CPU": 4}) == 1


@pytest.mark.parametrize(("text", "address"), [("ray", ""), ("ray://head:10001", "ray://head:10001")])
def test_addresses_are_parsed(text, address):
    assert parse_distributed(text) == address


@pytest.mark.parametrize("text", ["", "dask", "ray://", "raylet"])
def test_other_clusters_are_refused(text):
    with pytest.raises(UsageError, match="is not a Ray cluster"):
        parse_distributed(text)


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CapabilityError) as caught, joined_cluster(""):
        pass
    assert "page4d[ray]" in caught.value.hint
