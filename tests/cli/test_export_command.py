"""`page4d export`: every error, and the guarantees: atomic, repeatable, inputs unchanged, sizes predicted."""

import errno
import hashlib
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from page4d.exporters import npz, splat
from page4d.exporters.export import RECORD_NAME, plan_exports
from page4d.exporters.formats import FORMATS, PictureUse
from page4d.formats.ply import PointCloud
from page4d.io.atomic import leftovers
from page4d_cli.commands import doctor
from tests.exporters.capture import Capture, make_capture
from tests.forks import command, forked

SIZE = (48, 64)
REQUIRED = {"usd": "pxr", "exr": "OpenEXR"}
"""Modules of the formats that need an extra."""

NO_PICTURES = [name for name, format in FORMATS.items() if format.pictures is PictureUse.NONE]

Export = Callable[..., Any]


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return make_capture(tmp_path_factory.mktemp("static"), size=SIZE, velocity=True, tracks=True)


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return make_capture(tmp_path_factory.mktemp("moving"), size=SIZE, moving=True)


@pytest.fixture
def export(capture: Capture, cli: Callable[..., Any], tmp_path: Path) -> Export:
    """`page4d export` of the capture to a folder, `dir` unless another is given."""

    def call(names: str, *arguments: object, to: Path | None = None, capture: Capture = capture) -> Any:
        formats = [FORMATS[name] for name in names.split(",") if name in FORMATS]
        pictures = any(format.pictures is not PictureUse.NONE for format in formats)
        scene = ("--scene", capture.scene) if pictures and not {"--scene", "--no-images"} & set(arguments) else ()
        return cli("export", capture.folder, "--format", names, "--to", to or tmp_path / "dir", *scene, *arguments)

    return call


def hashes(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def needs(name: str) -> None:
    if name in REQUIRED:
        pytest.importorskip(REQUIRED[name])


class TestErrors:
    def test_a_format_without_pictures_takes_the_scene_and_states_that_it_is_not_used(self, export, capture) -> None:
        remark = "glb has no pictures: those of --scene are not written"
        for names, is_stated in (("glb", True), ("glb,colmap", False)):
            ended = export(names, "--scene", capture.scene, "--dry-run")
            assert (ended.code, remark in " ".join(ended.out.split())) == (0, is_stated)

    def test_a_scene_without_a_view_is_refused(self, export, capture, tmp_path) -> None:
        shutil.copytree(capture.scene / "cam01", tmp_path / "scene" / "cam01")
        ended = export("colmap", "--scene", tmp_path / "scene")
        assert ended.code == 3
        assert "has no cam02/, cam03/, cam04/ of the run" in ended.err

    @pytest.mark.parametrize("name", [name for name, format in FORMATS.items() if format.static_rig])
    def test_moving_cameras_are_refused_where_a_view_has_one_camera(self, name, export, moving) -> None:
        ended = export(name, capture=moving)
        assert ended.code == 3
        message = f"error: {name} has one camera per view, and the cameras of this run move"
        assert ended.err == f"{message}\nhint:  use nerfstudio, fudan-4dgs, dynamic3dgs, easyvolcap\n"
        assert export(name, "--instants", "0:2", "--views", "cam01,cam02,cam03", "--dry-run").code == 0

    @pytest.mark.parametrize(
        ("limit", "message", "hint"),
        [
            ("max_instants", "takes at most 3 instants; this export has 4", "such as --instants 0:3"),
            ("max_views", "takes at most 3 views; this export has 4", "choose some with --views"),
        ],
    )
    def test_too_many_instants_or_views_are_refused(self, limit, message, hint, export, monkeypatch) -> None:
        assert (FORMATS["4dgaussians-dynerf"].max_instants, FORMATS["dynamic3dgs"].max_views) == (300, 50)
        limited = {**vars(FORMATS["glb"]), limit: 3, "animated_points": 0}
        monkeypatch.setitem(FORMATS, "glb", type(FORMATS["glb"])(**limited))
        ended = export("glb")
        assert ended.code == 3
        assert message in ended.err
        assert hint in ended.err

    @pytest.mark.parametrize("name", REQUIRED)
    def test_a_missing_extra_is_named_with_its_command(self, name, export, monkeypatch, cli, tmp_path) -> None:
        monkeypatch.setitem(sys.modules, REQUIRED[name], None)
        ended = export(f"glb,{name}")
        assert ended.code == 6
        assert f"error: {name} needs " in ended.err
        assert "-m pip install " in ended.err.splitlines()[1]
        assert not list(tmp_path.iterdir())
        (listed,) = [row for row in json.loads(cli("export", "--list", "--json").out) if row["name"] == name]
        assert not listed["installed"]


class TestFolders:
    def test_a_folder_that_is_not_empty_is_refused(self, export, tmp_path) -> None:
        (tmp_path / "dir").mkdir()
        (tmp_path / "dir" / "notes.txt").write_text("notes")
        ended = export("glb")
        assert ended.code == 2
        assert ended.err == f"error: '{tmp_path}/dir' is not empty\nhint:  use --overwrite or another folder\n"
        ended = export("glb", "--overwrite")
        assert (ended.code, "page4d did not write" in ended.err) == (2, True)
        assert hashes(tmp_path).keys() == {"dir/notes.txt"}

    def test_overwrite_replaces_a_former_export(self, export, tmp_path) -> None:
        assert export("glb").code == 0
        assert export("glb").code == 2
        assert export("splat", "--instants", "0:2", "--overwrite").code == 0
        assert hashes(tmp_path / "dir").keys() == {RECORD_NAME, "frame_000000.ply", "frame_000001.ply"}
        assert [path.name for path in tmp_path.iterdir()] == ["dir"]

    def test_files_that_were_added_to_a_former_export_are_kept(self, export, tmp_path) -> None:
        assert export("glb").code == 0
        (tmp_path / "dir" / "training").mkdir()
        (tmp_path / "dir" / "training" / "scene.blend").write_text("work")
        before = hashes(tmp_path)
        ended = export("glb", "--overwrite")
        assert ended.code == 2
        assert f"'{tmp_path}/dir' holds 1 file that the export did not write" in ended.err
        assert hashes(tmp_path) == before

    def test_a_mount_point_is_refused_before_the_work(self, export, tmp_path, monkeypatch) -> None:
        (tmp_path / "dir").mkdir()
        monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "dir")
        ended = export("glb")
        assert (ended.code, "is a mount point" in ended.err) == (2, True)

    def test_a_file_in_the_way_is_refused(self, export, tmp_path) -> None:
        (tmp_path / "dir").write_text("text")
        assert (ended := export("glb")).code == 5
        assert "it is a file" in ended.err
        assert (ended := export("glb", to=tmp_path / "dir" / "below")).code == 5
        assert "a part of the path is a file" in ended.err

    def test_the_working_folder_is_not_replaced(self, export, tmp_path, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        ended = export("chan", to=Path())
        message = "error: '.' is the working folder\nhint:  give a new folder in it, such as --to export\n"
        assert (ended.code, ended.err) == (2, message)
        assert export("chan,npz", to=Path()).code == 0
        assert {path.name for path in tmp_path.iterdir()} == {"chan", "npz"}

    def test_runs_and_scenes_are_not_written_to(self, export, capture, tmp_path) -> None:
        below = {"run": capture.folder / "glb", "scene": capture.scene / "glb"}
        for target in (capture.folder, capture.folder.parent, capture.scene, *below.values()):
            ended = export("colmap", to=target)
            assert ended.code == 2
            assert "overlap" in ended.err
        other = tmp_path / "other"
        other.mkdir()
        for name in ("run.json", "cameras.json"):
            shutil.copy(capture.folder / name, other)
        ended = export("glb", to=other / "glb")
        assert (ended.code, "is in the output folder of a run" in ended.err) == (2, True)
        assert export("glb", "--overwrite", to=other).code == 2
        assert export("glb,chan", to=capture.folder).code == 2

    def test_links_are_followed(self, export, capture, tmp_path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "dir").symlink_to(tmp_path / "elsewhere")
        assert export("chan").code == 0
        assert (tmp_path / "dir").is_symlink()
        assert (tmp_path / "elsewhere" / "cam01.chan").is_file()
        (tmp_path / "run").symlink_to(capture.folder)
        assert "overlap" in export("chan", to=tmp_path / "run" / "chan").err
        (tmp_path / "nothing").symlink_to(tmp_path / "missing")
        assert (ended := export("chan", to=tmp_path / "nothing")).code == 5
        assert "a link to nothing" in ended.err

    def test_several_formats_have_a_folder_each(self, export, tmp_path) -> None:
        ended = export("chan,glb,chan")
        assert ended.code == 0
        assert {path.name for path in (tmp_path / "dir").iterdir()} == {"chan", "glb"}
        assert [line for line in ended.out.splitlines() if line.startswith("folder")] == [
            f"folder    {tmp_path}/dir/{name}" for name in ("chan", "glb")
        ]

    def test_formats_before_one_that_fails_are_complete_and_reported(self, export, tmp_path, monkeypatch) -> None:
        monkeypatch.setattr(
            "page4d.exporters.splat.write",
            Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path))),
        )
        for arguments in ((), ("--json", "--overwrite")):
            ended = export("chan,splat,glb", *arguments)
            assert (ended.code, "disk full" in ended.err) == (5, True)
            assert [path.name for path in (tmp_path / "dir").iterdir()] == ["chan"]
            assert f"{tmp_path}/dir/chan" in ended.out
        assert [row["format"] for row in json.loads(ended.out)] == ["chan"]

    def test_a_run_that_another_one_replaces_meanwhile_is_not_exported(self, export, capture, tmp_path, monkeypatch):
        shutil.copytree(capture.folder, tmp_path / "run")
        record, write = tmp_path / "run" / "run.json", npz.write

        def replaced(job: Any, folder: Path) -> Any:
            record.write_text(json.dumps(json.loads(record.read_text()) | {"status": "incomplete"}))
            return write(job, folder)

        monkeypatch.setattr(npz, "write", replaced)
        failed = export("npz", capture=replace(capture, folder=tmp_path / "run"))
        assert (failed.code, "was written anew while it was read" in failed.err) == (3, True)
        assert not (tmp_path / "dir").exists()

    def test_missing_memory_has_a_hint_for_exports(self, export, tmp_path, monkeypatch) -> None:
        monkeypatch.setattr("page4d.exporters.splat.write", Mock(side_effect=MemoryError))
        ended = export("splat")
        assert (ended.code, "--max-points" in ended.err.splitlines()[-1]) == (7, True)
        assert not list(tmp_path.iterdir())

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_folder_without_permission_is_refused(self, export, tmp_path) -> None:
        tmp_path.chmod(0o500)
        assert export("glb").code == 5
        tmp_path.chmod(0o700)

    def test_a_disk_without_room_is_found_before_anything_is_written(self, export, tmp_path, monkeypatch) -> None:
        monkeypatch.setattr("page4d.exporters.plan.shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
        ended = export("splat", to=tmp_path / "new" / "dir")
        assert ended.code == 5
        assert "the export needs at most" in ended.err
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("name", ["splat", "colmap", "usd", "npz", "exr", "glb"])
    def test_a_full_disk_leaves_nothing(self, name, export, tmp_path, file_size_limit) -> None:
        needs(name)
        with file_size_limit(2000):
            ended = export(name)
        assert ended.code == 5
        assert ended.err.splitlines()[-2].startswith("error: cannot write")
        assert not list(tmp_path.iterdir())


class TestPromises:
    @pytest.mark.parametrize("name", FORMATS)
    def test_a_second_export_has_the_same_bytes_and_the_predicted_size(
        self, name, export, capture, tmp_path, monkeypatch
    ) -> None:
        needs(name)
        if FORMATS[name].image_size:  # the prescribed size is large; test_export_dynerf has it
            monkeypatch.setitem(FORMATS, name, replace(FORMATS[name], image_size=SIZE))
        inputs = hashes(capture.folder), hashes(capture.scene)
        planned = json.loads(export(name, "--dry-run", "--json").out)[0]
        assert not list(tmp_path.iterdir())
        done = json.loads(export(name, "--json").out)[0]
        assert export(name, "--quiet", to=tmp_path / "second").out == ""
        first, second = hashes(tmp_path / "dir"), hashes(tmp_path / "second")
        assert first.keys() == second.keys()
        # The x264 encoder does not always repeat its bytes, and export.json has the sum of all.
        varying = {file for file in first if file.endswith(".mp4")}
        varying |= {RECORD_NAME} if varying else set()
        assert [file for file in first.keys() - varying if first[file] != second[file]] == []
        assert (hashes(capture.folder), hashes(capture.scene)) == inputs
        assert done["files"] == planned["files"] == len(first) - 1
        assert done["points"] <= planned["points"] <= 10 * done["points"]
        assert done["bytes"] <= planned["bytes"] < 20 * done["bytes"]
        record = json.loads((tmp_path / "dir" / RECORD_NAME).read_text())
        assert {key: done[key] for key in record} == record
        assert str(tmp_path) not in (tmp_path / "dir" / RECORD_NAME).read_text()

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("colmap", ("--per-instant",)),
            ("colmap", ("--no-images", "--text")),
            ("nerfstudio", ("--per-instant", "--hold-out", "cam02")),
            ("nerfstudio", ("--max-points", "500", "--image-size", "32")),
            ("usd", ("--split",)),
            ("glb", ("--animated", "--min-confidence", "0.6")),
            ("splat", ("--only", "moving", "--instants", "::2")),
        ],
    )
    def test_options_change_the_predicted_size(self, name, arguments, export) -> None:
        needs(name)
        planned = json.loads(export(name, *arguments, "--dry-run", "--json").out)[0]
        done = json.loads(export(name, *arguments, "--json").out)[0]
        assert planned["files"] == done["files"]
        assert done["points"] <= planned["points"] <= 10 * done["points"]
        assert done["bytes"] <= planned["bytes"] < 20 * done["bytes"]

    def test_a_signal_leaves_nothing(self, capture, tmp_path) -> None:
        folder = tmp_path / "exports"
        folder.mkdir()
        words = ["export", str(capture.folder), "--format", "splat", "--to", str(folder / "dir")]
        export = forked(tmp_path, slowly, words)
        while not list(folder.glob(".dir.*.part/*")):
            assert export.process.is_alive()
            time.sleep(0.02)
        code, _, err = export.ended(2)
        assert (code, err) == (130, "error: interrupted\nhint:  repeat the command\n")
        assert not list(folder.iterdir())

    def test_formats_before_a_signal_are_replaced_by_a_repetition(self, export, monkeypatch) -> None:
        monkeypatch.setattr(splat, "write", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        ended = export("npz,splat")
        assert (ended.code, ended.err.splitlines()[-1]) == (130, "hint:  repeat the command with --overwrite")
        assert "npz" in ended.out
        monkeypatch.undo()
        assert (export("npz,splat").code, export("npz,splat", "--overwrite").code) == (2, 0)

    def test_the_folder_of_a_killed_export_is_named_and_stays(self, export, tmp_path, monkeypatch) -> None:
        left = [tmp_path / f".{name}.0a1b2c3d.part" for name in ("dir", "dir.2")]
        for folder in left:
            folder.mkdir()
        (done,) = json.loads(export("splat", "--json").out)
        assert done["remarks"][-1].startswith("next to it, killed exports left .dir.0a1b2c3d.part: delete them")
        assert all(folder.is_dir() for folder in left)
        monkeypatch.setattr(Path, "iterdir", Mock(side_effect=PermissionError))  # may be written, not listed
        assert leftovers(tmp_path / "dir") == []

    def test_options_reach_the_export(self, export, tmp_path) -> None:
        words = ["--instants", "1:4:2", "--views", "cam03,cam01", "--hold-out", "cam03", "--max-points", "50"]
        words += ["--image-format", "jpg", "--image-size", "32", "--pinhole", "common", "--up", "-z", "--scale", "2"]
        assert export("nerfstudio", *words, "--seed", "3", "--only", "static", "--voxel", "0.01").code == 0
        record = json.loads((tmp_path / "dir" / RECORD_NAME).read_text())
        assert [view["name"] for view in record["views"]] == ["cam01", "cam03"]
        assert [instant["instant"] for instant in record["instants"]] == [1, 3]
        assert (record["held_out"], record["scale"], record["up"]) == (["cam03"], 2.0, "-z")
        assert 45 <= record["points"] <= 50
        assert record["views"][0]["picture_size"] == [32, 24]
        assert (record["options"]["seed"], record["options"]["only"], record["options"]["voxel"]) == (
            3,
            "static",
            0.01,
        )
        assert sorted(path.name for path in (tmp_path / "dir" / "images" / "cam01").iterdir()) == [
            "frame_000001.jpg",
            "frame_000003.jpg",
        ]


def slowly(words: list[str]) -> None:
    """Run a command line that waits after every cloud of splats."""
    encode = splat.encode_splats

    def slow(cloud: PointCloud) -> bytes:
        data = encode(cloud)
        time.sleep(0.3)
        return data

    splat.encode_splats = slow
    command(words)


class TestReports:
    def test_doctor_has_the_extras(self, monkeypatch) -> None:
        def not_installed(package: str) -> str:
            raise PackageNotFoundError(package)

        monkeypatch.setattr(doctor.importlib.metadata, "version", not_installed)
        found = {row.name: row.fix for row in (check() for check in doctor._CHECKS[-5:])}
        assert list(found) == ["Ray", "viewer", "OpenUSD", "OpenEXR", "xarray"]
        packages = [fix.partition(" install ")[2].split(">")[0] for fix in found.values()]
        assert packages == ["'ray", "'viser", "'usd-core", "'OpenEXR", "'xarray"]

    def test_the_page_on_exports_has_the_same_table(self, cli) -> None:
        page = (Path(__file__).parents[2] / "docs" / "exports.md").read_text(encoding="utf-8")
        found = [tuple(line.strip("| ").split(" | ")) for line in page.splitlines() if line.startswith("| [`")]
        budgets = {"capture": " in all", "instant": " per instant"}
        for row, cells in zip(json.loads(cli("export", "--list", "--json").out), found, strict=True):
            points = {None: "-", 0: "all"}.get(row["max_points"], f"{row['max_points'] or 0:,}")
            points += budgets[row["budget"]] if row["max_points"] else ""
            pictures = row["pictures"].replace("none", "-")
            link = f"[`{row['name']}`](#{row['name']})"
            assert cells == (link, row["used_by"], row["title"], pictures, points)

    def test_the_next_step_is_on_lines_of_its_own(self, export, tmp_path) -> None:
        ended = export("nerfstudio")
        lines = ended.out.splitlines()
        following = lines[lines.index("next step") + 1 :]
        assert following[0].startswith(f"ns-train splatfacto --data {tmp_path}/dir ")
        assert "export nerfstudio: " in ended.err
        assert export("nerfstudio", "--quiet", "--overwrite").err == ""

    @pytest.mark.parametrize("name", FORMATS)
    def test_paths_with_spaces_are_quoted_in_the_next_step(self, name, capture, tmp_path) -> None:
        scene = None if name in NO_PICTURES else capture.scene
        ((job, _),) = plan_exports(capture.folder, name, tmp_path / "dir", overwrite=False, scene=scene)
        folder = tmp_path / "my scene"
        folder.mkdir()
        empty = b"ply\nformat binary_little_endian 1.0\nelement vertex 0\nend_header\n"
        (folder / "points3d.ply").write_bytes(empty)  # fudan-4dgs counts its points
        words = shlex.split(job.format.code.next_step(job, folder))
        assert any(str(folder) in word for word in words)
        assert not [word for word in words if "my scene" not in word and word.endswith("/my")]

    def test_the_shares_of_warped_pictures_are_printed(self, export) -> None:
        assert "pictures warped to other intrinsics" in export("colmap", "--pinhole", "common", "--dry-run").out
        assert "other intrinsics" not in export("colmap", "--dry-run").out
