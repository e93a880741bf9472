"""`page4d reconstruct SCENE SCENE...`: results equal to those of single runs, and exit codes."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from page4d.batch.jobs import SceneProcess
from tests.cli.clips import write_scene
from tests.cli.conftest import NETWORK
from tests.run.test_reconstruct import bytes_of
from tests.scene.clip_writers import write_images


@pytest.fixture
def scenes(tmp_path):
    first = write_scene(tmp_path / "takes" / "one")
    return [first, tmp_path / "takes" / "absent", write_scene(tmp_path / "takes" / "two", ("left", "right", "top"))]


@pytest.mark.usefixtures("forked_processes")
def test_a_batch_of_one_or_several_scenes_writes_a_result_per_scene_and_reports_failures(
    scenes, tmp_path, cli, reconstruct, monkeypatch
):
    follow, to_be_stopped = SceneProcess.follow, {"one"}

    def stop_once(process):
        if process._job.name in to_be_stopped:
            to_be_stopped.remove(process._job.name)
            os.kill(process._process.pid, signal.SIGTERM)
        return follow(process)

    monkeypatch.setattr(SceneProcess, "follow", stop_once)
    root = tmp_path / "results"
    ended = cli("reconstruct", *scenes, "--out", root, *NETWORK, "--jobs", 2)
    assert ended.code == 8
    assert "2 scenes at once, each within" in ended.err
    assert "error: absent: scene folder '" in ended.err
    assert "error: one: interrupted" in ended.err
    assert ended.err.endswith(
        f"error: 2 of 3 scenes failed\nhint:  see '{root}/batch.json'; --resume tries them again\n"
    )
    assert ended.out.count("complete") == 1
    assert "failed (2)" in ended.out
    record = json.loads((root / "batch.json").read_text())
    assert [scene["status"] for scene in record["scenes"]] == ["interrupted", "failed", "complete"]
    assert [scene["num_views"] for scene in record["scenes"]] == [None, None, 3]
    assert reconstruct(scenes[2], tmp_path / "alone").code == 0
    assert bytes_of(root / "two") == bytes_of(tmp_path / "alone")
    alone = reconstruct(write_scene(scenes[1]), root, "--batch", "--resume", "--quiet")
    assert (alone.code, alone.out) == (0, "")
    assert (root / "absent" / "run.json").is_file()
    record = json.loads((root / "batch.json").read_text())  # of both batches, as of the tasks of an array
    assert [(Path(scene["out"]).name, scene["status"]) for scene in record["scenes"]] == [
        ("one", "interrupted"),
        ("two", "complete"),
        ("absent", "complete"),
    ]


def test_a_dry_run_prints_every_plan_and_writes_nothing(scenes, tmp_path, cli):
    ended = cli("reconstruct", scenes[0], scenes[2], "--out", tmp_path / "root", *NETWORK, "--dry-run")
    assert ended.code == 0
    assert ended.out.count("chunks") == 2
    ended = cli("reconstruct", scenes[0], scenes[2], "--out", tmp_path / "root", *NETWORK, "--dry-run", "--json")
    assert [Path(plan["out"]).name for plan in json.loads(ended.out)] == ["one", "two"]
    assert not (tmp_path / "root").exists()


def test_masks_of_static_cameras_serve_all_scenes_of_a_batch(tmp_path, cli):
    takes = [write_scene(tmp_path / "takes" / name, ("left", "right")) for name in ("one", "two")]
    masks, white = tmp_path / "masks", np.full((48, 64, 3), 255, np.uint8)
    write_images(masks, {"left.png": white, "right.png": white})
    arguments = ("--out", tmp_path / "root", *NETWORK, "--masks", masks, "--mask-meaning", "keep", "--dry-run")
    assert cli("reconstruct", *takes, *arguments).code == 0
    (masks / "left.png").unlink()
    write_images(masks / "left", {"000000.png": white, "000001.png": white})
    assert "--masks of one scene with 2 scenes" in cli("reconstruct", *takes, *arguments).err
