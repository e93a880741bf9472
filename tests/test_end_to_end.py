"""`page4d reconstruct` with networks: output files that are complete and consistent with each other."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from evo.tools import file_interface
from safetensors.torch import load_file, save_file

import page4d
from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS
from page4d.weights.store import save_network
from page4d_cli.app import run
from tests.keymaps import recorded_config

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "samples" / "room"
TREADMILL = ROOT.parent / "shared" / "scenes" / "treadmill"


def reconstruct(scene: Path, out: Path, *arguments: object) -> int:
    return run([str(part) for part in ["reconstruct", scene, "--out", out, *arguments]])


OWN_CAMERAS = ("--register", "network")
"""Cameras of the network: those of evidence in the pictures take seconds."""


def assert_consistent(out: Path, max_pixels_off: float = 0.5) -> None:
    """Check all files against each other with independent readers."""
    record = json.loads((out / "run.json").read_text())
    cameras = json.loads((out / "cameras.json").read_text())["views"]
    times, views = record["times"], record["views"]
    for view in views:
        trajectory = file_interface.read_tum_trajectory_file(str(out / "cameras" / f"{view['safe_name']}.tum"))
        poses = np.array(cameras[view["name"]]["world_to_camera"]).reshape(-1, 4, 4)
        poses = np.broadcast_to(poses, (len(times), 4, 4))
        assert np.allclose(np.linalg.inv(np.array(trajectory.poses_se3)), poses, atol=1e-6)
    for time in range(len(times)):
        header, vertices = read_ply(out / "points" / f"frame_{time:06d}.ply")
        assert "comment" in header
        for index, view in enumerate(views):
            folder, name = view["safe_name"], f"frame_{time:06d}.png"
            depth = cv2.imread(str(out / "depth" / folder / name), cv2.IMREAD_UNCHANGED)
            width, height = view["map_size"]
            assert depth.shape == (height, width)
            assert depth.dtype == np.uint16
            assert cv2.imread(str(out / "confidence" / folder / name), cv2.IMREAD_UNCHANGED).dtype == np.uint8
            if (out / "dynamic").exists():  # not every network predicts motion
                assert cv2.imread(str(out / "dynamic" / folder / name), cv2.IMREAD_UNCHANGED).dtype == np.uint8
            pose = np.array(cameras[view["name"]]["world_to_camera"]).reshape(-1, 4, 4)
            intrinsics = np.array(cameras[view["name"]]["intrinsics"]).reshape(-1, 3, 3)
            pose, intrinsics = pose[min(time, len(pose) - 1)], intrinsics[min(time, len(intrinsics) - 1)]
            points = vertices[vertices["view"] == index]
            xyz = np.stack([points["x"], points["y"], points["z"]], axis=1).astype(np.float64)
            in_camera = xyz @ pose[:3, :3].T + pose[:3, 3]
            pixels = (in_camera / in_camera[:, 2:]) @ intrinsics.T
            original_width, original_height = view["original_size"]
            at_map = pixels[:, :2] * [width / original_width, height / original_height]
            column, row = np.floor(at_map).astype(int).T
            assert np.abs(at_map - 0.5 - np.stack([column, row], axis=1)).max() < max_pixels_off
            levels = depth[row, column]
            quantum = 1 / record["depth_scale"]
            rounding = 1e-6 * np.abs(xyz).max()
            error = np.abs(in_camera[:, 2] - levels / record["depth_scale"])
            assert error[levels < 65535].max(initial=0) <= quantum + rounding


def read_ply(path: Path) -> tuple[str, np.ndarray]:
    header, _, body = path.read_bytes().partition(b"end_header\n")
    types = {"float": "<f4", "uchar": "u1"}
    properties = [line.split()[1:] for line in header.decode().splitlines() if line.startswith("property")]
    layout = np.dtype([(name, types[kind]) for kind, name in properties])
    assert layout.names == ("x", "y", "z", "red", "green", "blue", "confidence", "view", "dynamic")
    assert len(body) % layout.itemsize == 0
    return header.decode(), np.frombuffer(body, layout)


def test_an_untrained_network_runs_with_a_notice_and_a_banner(tmp_path, capsys):
    options = ("--untrained", "--size", 56, "--frames", "0:5", "--chunk", 3, "--overlap", 1)
    assert reconstruct(SAMPLE, tmp_path / "out", "--views", 2, *options, *OWN_CAMERAS) == 0
    captured = capsys.readouterr()
    assert "UNTRAINED NETWORK" in captured.out
    assert "UNTRAINED NETWORK" in captured.err
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["network"]["notice"].startswith("UNTRAINED NETWORK")
    assert (record["scale"], len(record["chunks"])) == ("arbitrary", 2)
    assert record["chunks"][1]["seam"] is not None
    assert record["peak_memory_bytes"] > 0
    assert_consistent(tmp_path / "out")
    banner = cv2.imread(str(tmp_path / "out" / "preview" / "contact_sheet.png"))[4, 4]
    assert banner[2] > 150
    assert banner[0] < 60
    output = page4d.open_output(tmp_path / "out")
    identity = torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(output.cameras.world_to_camera[0, 0], identity, rtol=0, atol=1e-6)


def test_a_weights_file_is_used_and_recorded(tmp_path):
    torch.manual_seed(1)
    network = build_network(PRESETS["mv-tiny"])
    save_network(network, tmp_path / "net.safetensors", {"licence": "CC0-1.0", "description": "test network"})
    weights = tmp_path / "net.safetensors"
    options = ("--weights", weights, "--frames", "0:2", "--views", 2, "--quiet", "--no-preview", *OWN_CAMERAS)
    assert reconstruct(SAMPLE, tmp_path / "out", *options) == 0
    described = json.loads((tmp_path / "out" / "run.json").read_text())["network"]
    assert (described["name"], described["licence"]) == ("test network", "CC0-1.0")
    assert (len(described["sha256"]), described["notice"]) == (64, "")
    assert_consistent(tmp_path / "out")


@pytest.mark.parametrize("case", ["pi3_c", "vggt_c"])
def test_a_converted_checkpoint_is_run(tmp_path, case: str):
    golden = ROOT / "tests" / "golden" / case
    tensors = load_file(f"{golden}.safetensors")
    prefix = "weights/"
    save_file(
        {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)},
        tmp_path / "public.safetensors",
    )
    weights = tmp_path / "net.safetensors"
    config = tmp_path / "network.json"
    config.write_text(recorded_config(case).to_json())
    convert = ["convert-weights", tmp_path / "public.safetensors", "--out", weights]
    assert run([str(part) for part in [*convert, "--config", config, "--quiet"]]) == 0
    options = ("--weights", weights, "--size", 56, "--frames", "0:3", "--views", 2, "--quiet", "--no-preview")
    assert reconstruct(SAMPLE, tmp_path / "out", *options, *OWN_CAMERAS) == 0
    assert_consistent(tmp_path / "out")


def test_a_calibrated_run_has_the_rigs_cameras_in_metres(tmp_path):
    options = ("--calibration", SAMPLE / "truth" / "cameras.json", "--no-check", "--untrained", "--preset", "mv-tiny")
    few = ("--size", 56, "--frames", "0:3", "--views", 2, "--quiet", "--no-preview")
    assert reconstruct(SAMPLE, tmp_path / "out", *options, *few) == 0
    assert json.loads((tmp_path / "out" / "run.json").read_text())["scale"] == "metric"
    truth = json.loads((SAMPLE / "truth" / "cameras.json").read_text())["cameras"]
    for name, view in json.loads((tmp_path / "out" / "cameras.json").read_text())["views"].items():
        assert np.allclose(view["world_to_camera"], truth[name]["world_to_camera"], atol=1e-12)
        assert np.allclose(view["intrinsics"], truth[name]["intrinsics"], atol=1e-9)
    assert_consistent(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.skipif(not TREADMILL.is_dir(), reason=f"no real capture in {TREADMILL}")
def test_four_real_videos_of_two_sizes_and_codecs_are_reconstructed(tmp_path, capsys):
    calibration = ("--calibration", TREADMILL / "Calib.qca.txt")
    options = ("--views", 4, "--untrained")
    assert reconstruct(TREADMILL, tmp_path / "out", *calibration, *options) == 3
    error = capsys.readouterr().err
    assert "cam01: calibration is for 1088x1920, video is 1080x1920" in error
    assert "cam02: calibration is for 1088x1920, video is 1080x1920" in error
    assert "--calib-resize" in error
    assert not (tmp_path / "out").exists()
    assert reconstruct(TREADMILL, tmp_path / "out", *calibration, *options, "--calib-resize", "crop-center") == 0
    assert len(json.loads((tmp_path / "out" / "run.json").read_text())["times"]) == 100
    assert_consistent(tmp_path / "out")
