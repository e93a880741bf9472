"""The world frame and the scale of a result."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from page4d.choices import ExistingOutput, Poses
from page4d.conventions import Scale, ScaleSource
from page4d.errors import UsageError
from page4d.exporters.export import export
from page4d.formats.cameras_json import read_cameras_json
from page4d.formats.ply import offset_text, read_ply_header
from page4d.geometry.rotation import rotation_defect
from page4d.geometry.transforms import camera_centers
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.lab.synthetic.write import write_capture
from page4d.options import ReconstructSettings
from page4d.output.reader import open_output
from page4d.output.record import RunRecord
from page4d.records import Predictions
from page4d.run.reconstruct import reconstruct
from page4d.run.stages.world import World
from page4d.scene.open import open_scene
from page4d.scene.records import Clock, Scene, View
from tests.run.test_reconstruct import SETTINGS, bytes_of, resumed
from tests.run.truth import TruthPredictor, exact_predictions, random_similarity
from tests.scene.clip_writers import counter_image, write_images
from tests.scene.test_assign_cameras import NUMBERED, SIZE, STAMPED, moving
from tests.scene.test_assign_cameras import write_calibration as write_rig

CAPTURE = SyntheticCapture(seed=1, num_views=3, num_times=2, image_size=(24, 32))


@pytest.fixture(scope="module")
def truth() -> Predictions:
    return exact_predictions(CAPTURE)


def test_predicted_cameras_are_aligned_to_the_rigs_world(truth: Predictions):
    world = World(CAPTURE.scene(), Poses.PREDICTED, predictor_uses_rig=False)
    moved = truth.transformed(random_similarity(4))
    assert world.register(moved, truth.cameras)[0] is moved
    placed = moved.transformed(world.place_first(moved, truth.cameras))
    torch.testing.assert_close(placed.cameras.world_to_camera, truth.cameras.world_to_camera, rtol=0, atol=1e-9)
    torch.testing.assert_close(placed.depth, truth.depth, rtol=1e-9, atol=1e-9)


def test_a_single_static_camera_determines_no_scale():
    capture = SyntheticCapture(seed=1, num_views=1, num_times=2, image_size=(24, 32))
    alone = exact_predictions(capture)
    world = World(capture.scene(), Poses.INPUT, predictor_uses_rig=False)
    world.register(alone.transformed(random_similarity(4)), alone.cameras)
    assert not world.scale_is_known
    assert "the calibrated cameras coincide" in world._notices()[0].text
    assert world.scale is Scale.ARBITRARY


def coinciding(predictions: Predictions) -> Predictions:
    """Put all cameras at the first one, up to rounding."""
    poses = predictions.cameras.world_to_camera
    jitter = 1e-9 * torch.randn(poses.shape[:-2], generator=torch.Generator().manual_seed(0), dtype=poses.dtype)
    first = poses[:, :1, :1].expand_as(poses).clone()
    first[..., 0, 3] += jitter
    return replace(predictions, cameras=replace(predictions.cameras, world_to_camera=first))


@pytest.mark.parametrize("is_continued", [False, True])
def test_a_chunk_without_a_baseline_or_shared_instants_has_the_scale_at_which_its_depth_agrees(is_continued: bool):
    """The last chunk of a continued run is predicted again, and keeps its recorded scale."""
    capture = SyntheticCapture(seed=1, num_views=3, num_times=1, image_size=(96, 128))
    true, world = exact_predictions(capture), World(capture.scene(), Poses.INPUT, predictor_uses_rig=False)
    _, transform = world.register(true, true.cameras)
    if is_continued:
        world.continue_from(ScaleSource.CALIBRATION, transform)
    halved = true.transformed(replace(random_similarity(2), scale=torch.tensor(0.5, dtype=torch.float64)))
    _, transform = world.register(coinciding(halved), true.cameras)
    assert float(transform.scale) == pytest.approx(1.0 if is_continued else 2.0, rel=0.02)


def test_chunks_of_one_calibrated_camera_have_the_scale_of_the_first(tmp_path: Path):
    """A network predicts each chunk in a unit of its own; one camera has no baseline that determines it."""
    capture = SyntheticCapture(seed=1, num_views=1, num_times=7, image_size=(24, 32))
    scene, out = capture.scene(), (tmp_path / "one", tmp_path / "two")
    predictor = TruthPredictor(capture, lambda start, found: found.transformed(random_similarity(start)))
    settings = replace(SETTINGS, chunk=3, overlap=1)
    record = reconstruct(scene, predictor, out=out[0], settings=settings)
    assert len({chunk.transform.scale for chunk in record.chunks if chunk.transform}) == len(record.chunks) > 2
    output = open_output(out[0])
    factors = [output.depth(time, "cam01") / capture.rendered(time, 0).depth.numpy() for time in range(7)]
    assert np.ptp([np.median(factor) for factor in factors]) < 1e-3 * np.median(factors[0])
    resumed(reconstruct, scene, predictor, out=out[1], instants=3, settings=settings)
    assert bytes_of(out[1]) == bytes_of(out[0])
    with pytest.raises(UsageError, match="an overlap of 0 leaves 3 chunks without shared instants") as raised:
        reconstruct(scene, predictor, out=tmp_path / "none", settings=replace(settings, overlap=0))
    assert "calibration" not in raised.value.hint


def test_the_unit_of_length_is_determined_by_the_first_chunk(truth: Predictions):
    world = World(CAPTURE.scene(), Poses.INPUT, predictor_uses_rig=False)
    world.register(coinciding(truth), truth.cameras)
    assert world.scale is Scale.ARBITRARY
    assert "the predicted cameras coincide" in world._notices()[0].text
    _, transform = world.register(truth.transformed(random_similarity(3)), truth.cameras)
    assert world.scale is Scale.ARBITRARY
    assert float(transform.scale) == 1.0


OFFSET = (500000.0, 5000000.0, 300.0)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a capture with a calibration whose coordinates are those of a survey."""
    folder = tmp_path_factory.mktemp("survey") / "rig"
    write_capture(CAPTURE, folder)
    document = json.loads((folder / "truth/cameras.json").read_text())
    for camera in document["cameras"].values():
        pose = np.array(camera["world_to_camera"])
        pose[:3, 3] -= pose[:3, :3] @ OFFSET
        camera["world_to_camera"] = pose.tolist()
    (folder / "survey.json").write_text(json.dumps(document))
    return folder


def run_of(rig: Path, calibration: Path, out: Path, **options: Any) -> RunRecord:
    depth, settings = rig / "truth/depth", ReconstructSettings(preview=False, chunk=1, overlap=0)
    return reconstruct(rig, out=out, calibration=calibration, depth=depth, settings=settings, **options)


@pytest.fixture(scope="module")
def survey(rig: Path) -> Path:
    run_of(rig, rig / "survey.json", rig.parent / "out")
    return rig.parent / "out"


def test_a_world_too_large_for_single_precision_loses_no_digits(rig: Path, survey: Path, tmp_path: Path):
    run_of(rig, rig / "truth/cameras.json", tmp_path / "local")
    found, local = open_output(survey), open_output(tmp_path / "local")
    assert local.run.world_offset is None
    assert np.abs(np.subtract(found.run.world_offset, OFFSET)).max() <= 10
    assert any("about the offset" in text for text in found.run.warnings)
    shift = np.subtract(OFFSET, found.run.world_offset)
    for index in range(2):
        cloud, expected = found.points(index), local.points(index)
        np.testing.assert_allclose(cloud.xyz, expected.xyz + shift, rtol=0, atol=2e-6)
        assert np.array_equal(cloud.rgb, expected.rgb)
        points, mask = found.world_points(index, "cam01")
        expected_points, _ = local.world_points(index, "cam01")
        np.testing.assert_allclose(points[mask], expected_points[mask] + shift, rtol=0, atol=2e-6)
    comments = read_ply_header(found.layout.points(0)).comments
    assert any(line.startswith(f"offset {offset_text(found.run.world_offset)}: add") for line in comments)


def test_only_a_result_about_an_offset_has_a_warning_of_it(rig: Path, tmp_path: Path):
    calibration = {"calibration": rig / "survey.json"}
    record = run_of(rig, **calibration, out=tmp_path / "out", world="first-camera")
    assert record.world_offset is None
    texts = [*record.warnings, *(notice.text for notice in open_scene(rig, **calibration).notices)]
    assert not any("offset" in text for text in texts)


def test_cameras_of_a_large_world_are_written_in_full_and_read_about_the_offset(rig: Path, survey: Path):
    calibration = json.loads((rig / "survey.json").read_text())["cameras"]
    written = read_cameras_json(survey / "cameras.json")
    about, offset = open_output(survey).cameras, open_output(survey).run.world_offset
    for view, (name, camera) in enumerate(calibration.items()):
        assert written.world_to_camera[0, view].tolist() == camera["world_to_camera"]
        center = camera_centers(torch.tensor(camera["world_to_camera"], dtype=torch.float64)).numpy()
        found = camera_centers(about.world_to_camera[0, view]).numpy() + offset
        np.testing.assert_allclose(found, center, rtol=0, atol=1e-8)
        row = (survey / f"cameras/{name}.tum").read_text().splitlines()[1].split()
        np.testing.assert_allclose(np.array(row[1:4], dtype=float), center, rtol=0, atol=1e-8)


def test_exports_of_a_large_world_state_its_offset(survey: Path, tmp_path: Path):
    (exported,) = export(survey, "npz", tmp_path / "npz", scale=2.0)
    record, output = exported.record, open_output(survey)
    assert record.world_offset == output.run.world_offset
    assert any("about the offset" in remark for remark in record.remarks)
    point = output.points(0).xyz[0].astype(float)
    whole = np.array(record.world_from_run) @ [*(point + record.world_offset), 1]
    np.testing.assert_allclose(whole[:3], 2 * point, rtol=0, atol=1e-8)


def test_a_large_world_is_the_same_after_resume(rig: Path, survey: Path, tmp_path: Path):
    out = tmp_path / "out"
    shutil.copytree(survey, out)
    for name in ("state/chunk_00001.json", "points/frame_000001.ply", "cameras.json"):
        (out / name).unlink()
    run_of(rig, rig / "survey.json", out, existing=ExistingOutput.RESUME)
    for name in ("points/frame_000001.ply", "cameras.json"):
        assert (out / name).read_bytes() == (survey / name).read_bytes()


@pytest.mark.parametrize(("first_ns", "trimmed"), [(STAMPED, 1), (NUMBERED, 0)], ids=["time stamps", "numbers"])
def test_moving_cameras_of_a_run_are_those_of_the_same_frames_of_one_of_its_views(
    first_ns: int, trimmed: int, tmp_path: Path
) -> None:
    own, _ = moving(times := [tenth / 10 for tenth in range(9)])
    calibration = write_rig(tmp_path / "rig.json", {"a": own, "b": own}, times=times)
    for name, first in {"a": 0, "b": 2}.items():
        files = [f"{first_ns + tenth * 10**8:010}.png" for tenth in range(first, first + 6)]
        write_images(tmp_path / "rig" / name, {file: counter_image(count, SIZE) for count, file in enumerate(files)})
        write_images(tmp_path / "depth" / name, {file: np.full(SIZE, 2000, np.uint16) for file in files})
    options = {"depth": tmp_path / "depth", "image_fps": 10, "preview": False, "observer": None}
    reconstruct(tmp_path / "rig", out=tmp_path / "run", calibration=calibration, **options)
    for file in files[:trimmed]:
        (tmp_path / "rig/b" / file).unlink()
    changes = {"views": ("b",), "frames": (0, 4 - trimmed), "calibration": tmp_path / "run/cameras.json"}
    reconstruct(tmp_path / "rig", out=tmp_path / "again", **options | changes)
    whole, part = (open_output(tmp_path / name).cameras for name in ("run", "again"))
    assert whole.starts == (0.0, 0.2)
    torch.testing.assert_close(part.world_to_camera[:, 0], whole.world_to_camera[trimmed:, 1])


def test_predicted_cameras_in_a_large_world_have_exact_rotations():
    poses = torch.eye(4, dtype=torch.float64).repeat(1, 2, 1, 1)
    poses[..., :3, :3] = poses[..., :3, :3] + 1e-7
    poses[..., :3, 3] = torch.tensor([1.0, 2.0, 3.0])
    scene = Scene(name="", views=(View(name="a", source=None, clock=Clock(), indices=()),), times=np.zeros(1))
    moved = replace(scene, world_offset=OFFSET).in_files(0, poses[:, 0])
    assert float(rotation_defect(moved[..., :3, :3]).max()) < 1e-14
    np.testing.assert_allclose(camera_centers(moved)[0] - torch.tensor(OFFSET), [-1, -2, -3], atol=2e-6)
