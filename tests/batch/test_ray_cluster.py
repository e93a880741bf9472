"""Work on a Ray cluster of two workers gives the same bytes as work here."""

import json
from pathlib import Path

import pytest

from page4d.batch.ray_cluster import Share, parse_distributed
from page4d.errors import CapabilityError, UsageError
from page4d_cli.app import run
from tests.cli.clips import write_scene

ray = pytest.importorskip("ray", reason="Ray is an extra")

NETWORK = ("--untrained", "--preset", "mv-tiny", "--size", "28", "--no-preview")
CHUNKS = ("--chunk", "2", "--overlap", "1")


@pytest.fixture(scope="module")
def cluster():
    """Two workers of one CPU each, for all tests of this file: starting takes seconds."""
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
    def test_the_chunks_of_a_scene_come_out_the_same(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # workers live elsewhere
        scene = write_scene(Path("scene"), frames=8)
        assert reconstruct(scene, "--out", tmp_path / "here", *CHUNKS) == 0
        assert reconstruct(scene, "--out", tmp_path / "there", *CHUNKS, "--distributed", "ray") == 0
        assert contents(tmp_path / "there") == contents(tmp_path / "here")
        records = [json.loads((tmp_path / where / "run.json").read_text()) for where in ("here", "there")]
        assert len(records[0]["chunks"]) == 7
        assert records[0]["settings"] == records[1]["settings"]

    def test_scenes_come_out_the_same_and_failures_are_told(self, tmp_path):
        scenes = [write_scene(tmp_path / "takes" / name, frames=2) for name in ("one", "two")]
        ended = reconstruct(
            *scenes, tmp_path / "takes" / "absent", "--out", tmp_path / "there", "--distributed", "ray"
        )
        assert ended == 8
        assert reconstruct(scenes[1], "--out", tmp_path / "here") == 0
        assert contents(tmp_path / "there" / "two") == contents(tmp_path / "here")
        record = json.loads((tmp_path / "there" / "batch.json").read_text())
        assert [scene["status"] for scene in record["scenes"]] == ["complete", "complete", "failed"]
        assert record["scenes"][2]["exit_code"] == 2

    @pytest.mark.slow
    def test_a_frame_that_cannot_be_decoded_ends_the_run_as_it_does_here(self, tmp_path, capsys):
        scene = write_scene(tmp_path / "scene", frames=8)
        # Broken behind what opening reads, so that a worker is the first to see it.
        video = scene / "cam01.mp4"
        data = bytearray(video.read_bytes())
        middle = len(data) // 3
        data[middle : middle + 400] = bytes(400)
        video.write_bytes(data)
        here = reconstruct(scene, "--out", tmp_path / "here", *CHUNKS)
        said_here = capsys.readouterr().err.splitlines()[-2:]
        there = reconstruct(scene, "--out", tmp_path / "there", *CHUNKS, "--distributed", "ray")
        assert (there, capsys.readouterr().err.splitlines()[-2:]) == (here, said_here)


def test_room_for_workers():
    assert Share(threads=2, gpu=False).fit({"CPU": 9, "GPU": 3}) == 4
    assert Share(threads=2, gpu=True).fit({"CPU": 9, "GPU": 3}) == 3
    assert Share(threads=16, gpu=False).fit({"CPU": 4}) == 1


@pytest.mark.parametrize(("text", "address"), [("ray", ""), ("ray://head:10001", "ray://head:10001")])
def test_addresses(text, address):
    assert parse_distributed(text) == address


@pytest.mark.parametrize("text", ["", "dask", "ray://", "raylet"])
def test_other_clusters_are_refused(text):
    with pytest.raises(UsageError, match="is not known"):
        parse_distributed(text)


def test_without_ray_the_extra_is_named(monkeypatch):
    from page4d.batch.ray_cluster import joined_cluster

    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(CapabilityError) as caught, joined_cluster(""):
        pass
    assert "page4d[ray]" in caught.value.hint
