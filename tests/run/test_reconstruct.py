"""Whole runs of a predictor that returns the ground truth: outputs, resuming, overwriting and failures."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from page4d.choices import ExistingOutput
from page4d.conventions import Scale
from page4d.errors import (
    CapabilityError,
    InputError,
    InterruptedRunError,
    MemoryBudgetError,
    SilentObserver,
    UsageError,
    WeightsError,
)
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.options import PointOptions, ReconstructSettings
from page4d.output.reader import open_output
from page4d.records import Predictions
from page4d.run.plan import plan_run
from page4d.run.reconstruct import reconstruct
from page4d.scene.images import ImageFolderSource
from page4d.scene.records import PairedFrames, Scene
from tests.run.truth import TruthPredictor, random_similarity

CAPTURE = SyntheticCapture(seed=5, num_views=2, num_times=9, image_size=(24, 32))
SETTINGS = ReconstructSettings(chunk=4, overlap=2, preview=False, check_calibration=False)


def uncalibrated(scene: Scene) -> Scene:
    return replace(scene, views=tuple(replace(view, camera=None) for view in scene.views), scale=Scale.ARBITRARY)


def in_random_world(start: int, predictions: Predictions) -> Predictions:
    return predictions.transformed(random_similarity(start))


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Return the files of the output contract except run.json, which contains run times."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "run.json" and "state" not in path.parts and path.name[0] != "."
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    reconstruct(uncalibrated(CAPTURE.scene()), TruthPredictor(CAPTURE, in_random_world), out=out, settings=SETTINGS)
    return out


def test_chunks_in_random_worlds_are_stitched_into_one(finished: Path):
    output = open_output(finished)
    assert output.run.scale is Scale.ARBITRARY
    assert output.num_times == 9
    truth = CAPTURE.cameras.world_to_camera
    expected = truth @ torch.linalg.inv(truth[0, 0])
    found = output.cameras.world_to_camera
    torch.testing.assert_close(found[..., :3, :3], expected[..., :3, :3], rtol=0, atol=1e-6)
    scale = found[0, 1, :3, 3].norm() / expected[0, 1, :3, 3].norm()
    torch.testing.assert_close(found[..., :3, 3], scale * expected[..., :3, 3], rtol=0, atol=1e-5)
    for time in range(9):
        for view, name in enumerate(output.view_names):
            depth = output.depth(time, name)
            true_depth = CAPTURE.rendered(time, view).depth.numpy() * float(scale)
            assert np.abs(depth - true_depth).max() <= 0.6 / output.run.depth_scale
    assert len(output.run.chunks) == 4
    assert all(chunk.seam is not None and chunk.seam.residual < 1e-5 for chunk in output.run.chunks[1:])


def test_a_calibrated_run_has_exactly_the_rigs_cameras_and_depth_in_metres(tmp_path):
    reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE, in_random_world), out=tmp_path / "out", settings=SETTINGS)
    output = open_output(tmp_path / "out")
    assert output.run.scale is Scale.METRIC
    assert torch.equal(output.cameras.world_to_camera, CAPTURE.cameras.world_to_camera.double())
    for view, name in enumerate(output.view_names):
        true_depth = CAPTURE.rendered(8, view).depth.numpy()
        assert np.abs(output.depth(8, name) - true_depth).max() <= 0.0006


class StopAt(SilentObserver):
    """Interrupts the run like a signal, once a number of instants is written."""

    def __init__(self, instants: int) -> None:
        self.instants = instants

    def progress(self, done: int, total: int, stage: str = "") -> None:
        del total
        if not stage and done == self.instants:
            raise InterruptedRunError("stop", "", 15)


def resumed(run: Callable[..., Any], *inputs: Any, out: Path, instants: int, **options: Any) -> Any:
    """Stop a run once a number of instants is written, and continue it."""
    with pytest.raises(InterruptedRunError):
        run(*inputs, out=out, observer=StopAt(instants), **options)
    return run(*inputs, out=out, existing=ExistingOutput.RESUME, **options)


@pytest.mark.parametrize("instants", [0, 2, 5, 8])
def test_a_resumed_run_writes_the_same_bytes(tmp_path, finished: Path, instants: int):
    scene, out = uncalibrated(CAPTURE.scene()), tmp_path / "out"
    with pytest.raises(InterruptedRunError, match=r"after \d of 9 instants") as stopped:
        reconstruct(
            scene, TruthPredictor(CAPTURE, in_random_world), out=out, settings=SETTINGS, observer=StopAt(instants)
        )
    assert stopped.value.exit_code == 143
    again = TruthPredictor(CAPTURE, in_random_world)
    reconstruct(scene, again, out=out, settings=SETTINGS, existing=ExistingOutput.RESUME)
    assert bytes_of(out) == bytes_of(finished)
    assert len(again.calls) <= 4
    assert open_output(out).run.status == "complete"


def test_resume_refuses_other_settings_and_names_them(tmp_path):
    scene, out = CAPTURE.scene(), tmp_path / "out"
    stopped, resume = StopAt(3), ExistingOutput.RESUME
    with pytest.raises(InterruptedRunError):
        reconstruct(scene, TruthPredictor(CAPTURE), out=out, settings=SETTINGS, observer=stopped)
    predictor = TruthPredictor(CAPTURE)
    other_preset = replace(predictor, record=predictor.record.model_copy(update={"preset": "another"}))
    for settings, other, differs in [
        (replace(SETTINGS, chunk=5), predictor, "chunk"),
        (replace(SETTINGS, long_side=24), predictor, "size"),
        (replace(SETTINGS, points=PointOptions(voxel_size=0.1)), predictor, "voxel"),
        (replace(SETTINGS, seed=1), predictor, "seed"),
        (SETTINGS, other_preset, "preset"),
    ]:
        with pytest.raises(UsageError, match=rf"differs: {differs}\)"):
            reconstruct(scene, other, out=out, settings=settings, existing=resume)
    elsewhere = replace(scene, options=replace(scene.options, calibration=Path("elsewhere")))
    with_preview = replace(SETTINGS, preview=True)
    record = reconstruct(elsewhere, predictor, out=out, settings=with_preview, existing=resume)
    assert (record.status, record.settings["calibration"]) == ("complete", "elsewhere")


def test_a_resumed_run_keeps_earlier_warnings(tmp_path):
    scene, out = CAPTURE.scene(), tmp_path / "out"
    settings = ReconstructSettings(chunk=8, overlap=1, preview=False, check_calibration=False)
    with pytest.raises(InterruptedRunError):
        reconstruct(scene, TruthPredictor(CAPTURE, fails_above(4)), out=out, settings=settings, observer=StopAt(5))
    record = reconstruct(scene, TruthPredictor(CAPTURE), out=out, settings=settings, existing=ExistingOutput.RESUME)
    assert any("out of memory" in warning for warning in record.warnings)
    assert max(chunk.stop - chunk.start for chunk in record.chunks) == 2


def test_an_overlap_of_half_a_chunk_runs(tmp_path):
    settings = ReconstructSettings(chunk=8, overlap=4, preview=False, check_calibration=False)
    scene = uncalibrated(CAPTURE.scene())
    record = reconstruct(scene, TruthPredictor(CAPTURE, in_random_world), out=tmp_path / "out", settings=settings)
    assert record.status == "complete"


@pytest.mark.parametrize(("is_calibrated", "chunk", "overlap"), [(True, 4, 1), (False, 4, 2), (False, 2, 1)])
def test_known_cameras_need_fewer_shared_instants(is_calibrated: bool, chunk: int, overlap: int):
    scene = CAPTURE.scene() if is_calibrated else uncalibrated(CAPTURE.scene())
    plan = plan_run(scene, TruthPredictor(CAPTURE, settings=ReconstructSettings(chunk=chunk)))
    assert {plan.overlap} == {chunk.overlap for chunk in plan.chunks[1:]} == {overlap}


def test_chunks_without_overlap_are_refused_unless_calibrated(tmp_path):
    settings = ReconstructSettings(chunk=4, overlap=0, preview=False, check_calibration=False)
    with pytest.raises(UsageError, match="without shared instants to align them by"):
        reconstruct(uncalibrated(CAPTURE.scene()), TruthPredictor(CAPTURE), out=tmp_path / "out", settings=settings)
    assert not (tmp_path / "out").exists()
    record = reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE), out=tmp_path / "out", settings=settings)
    assert [chunk.overlap for chunk in record.chunks] == [0, 0, 0]


def test_cameras_that_are_not_finite_end_the_run(tmp_path):
    def disturb(start: int, predictions: Predictions) -> Predictions:
        poses = predictions.cameras.world_to_camera.clone()
        poses[0, -1, 1, 0, 3] = torch.nan if start else 0.0
        return replace(predictions, cameras=replace(predictions.cameras, world_to_camera=poses))

    with pytest.raises(WeightsError, match=r"view 'cam02' at 0\.\d+ s is not finite"):
        reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE, disturb), out=tmp_path / "out", settings=SETTINGS)


def test_an_output_that_would_overwrite_inputs_is_refused(tmp_path):
    folder = tmp_path / "depth" / "cam01"
    folder.mkdir(parents=True)
    (tmp_path / "state").mkdir()
    frames = [folder / f"{index:06d}.png" for index in range(9)]
    for file in (*frames, tmp_path / "state" / "run.json"):
        file.write_bytes(b"")
    scene = CAPTURE.scene()
    source = ImageFolderSource(
        path=folder, label="", files=tuple(frames), size=(24, 32), frame_times=np.arange(9) / 12, fps=12.0
    )
    read = PairedFrames(frames=source, indices=tuple(range(9)))
    scene = replace(scene, views=(replace(scene.views[0], depth=read), scene.views[1]))
    with pytest.raises(UsageError, match="would overwrite"):
        reconstruct(scene, TruthPredictor(CAPTURE), out=tmp_path, settings=SETTINGS, existing=ExistingOutput.RESUME)


def fails_above(length: int) -> Callable[[int, Predictions], Predictions]:
    def disturb(_: int, predictions: Predictions) -> Predictions:
        if predictions.num_times > length:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return predictions

    return disturb


def test_a_chunk_that_does_not_fit_is_halved_and_the_run_finishes(tmp_path):
    settings = ReconstructSettings(chunk=8, overlap=1, preview=False, check_calibration=False)
    out = tmp_path / "out"
    record = reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE, fails_above(3)), out=out, settings=settings)
    assert max(chunk.stop - chunk.start for chunk in record.chunks) <= 3
    assert "out of memory with 5 instants per chunk: continuing with 2" in record.warnings
    assert json.loads((out / "state" / "run.json").read_text())["plan"] == [
        [chunk.start, chunk.stop, chunk.overlap] for chunk in record.chunks
    ]
    assert torch.equal(open_output(out).cameras.world_to_camera, CAPTURE.cameras.world_to_camera.double())


def test_a_run_that_never_fits_in_memory_is_refused_with_a_smaller_size(tmp_path):
    settings = ReconstructSettings(chunk=8, overlap=1, preview=False, check_calibration=False)
    with pytest.raises(MemoryBudgetError, match="out of memory even with") as failure:
        reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE, fails_above(0)), out=tmp_path / "out", settings=settings)
    assert "long_side" in failure.value.hint
    assert failure.value.exit_code == 7


def test_other_errors_are_not_mistaken_for_memory(tmp_path):
    with pytest.raises(RuntimeError, match="a bug"):
        reconstruct(
            CAPTURE.scene(),
            TruthPredictor(CAPTURE, Mock(side_effect=RuntimeError("a bug"))),
            out=tmp_path / "out",
            settings=SETTINGS,
        )


def test_a_single_view_and_instant_are_reconstructed(tmp_path):
    capture = SyntheticCapture(seed=2, num_views=1, num_times=1, image_size=(24, 32))
    record = reconstruct(capture.scene(), TruthPredictor(capture), out=tmp_path / "out")
    assert record.status == "complete"
    assert (tmp_path / "out" / "preview" / "contact_sheet.png").exists()
    assert any("no baseline" in warning for warning in record.warnings)


def bent(start: int, predictions: Predictions) -> Predictions:
    """Distort the depth of the chunks from instant 4 on, so that no similarity aligns them."""
    height = predictions.depth.shape[-2]
    slope = torch.linspace(0.5, 2.0, height, dtype=predictions.depth.dtype)[:, None]
    return replace(predictions, depth=predictions.depth * slope) if start >= 4 else predictions


def test_a_seam_that_does_not_fit_is_a_warning_or_ends_a_strict_run(tmp_path):
    scene, out, strict = uncalibrated(CAPTURE.scene()), tmp_path / "out", replace(SETTINGS, strict_seams=True)
    with pytest.raises(
        InputError, match=r"do not fit together at instant 4: residual \d+\.\d% of the depth"
    ) as failed:
        reconstruct(scene, TruthPredictor(CAPTURE, bent), out=out, settings=strict)
    assert failed.value.exit_code == 3
    assert len(list((out / "points").iterdir())) == 4
    resume = ExistingOutput.RESUME
    record = reconstruct(scene, TruthPredictor(CAPTURE, bent), out=out, settings=SETTINGS, existing=resume)
    assert any("seams between chunks do not fit" in warning for warning in record.warnings)
    with pytest.raises(InputError, match="at instant 4"):
        reconstruct(scene, TruthPredictor(CAPTURE, bent), out=out, settings=strict, existing=resume)


@pytest.mark.usefixtures("without_open3d")
def test_a_machine_without_open3d_finishes_with_the_same_content(tmp_path, finished: Path):
    record = reconstruct(
        uncalibrated(CAPTURE.scene()),
        TruthPredictor(CAPTURE, in_random_world),
        out=tmp_path / "out",
        settings=SETTINGS,
    )
    notices = [text for text in record.warnings if "Open3D" in text]
    assert len(notices) == 1
    assert "Open3D cannot start: system library libEGL.so.1 is missing" in notices[0]
    assert "page4d wrote clouds and trajectories itself" in notices[0]
    expected, found = bytes_of(finished), bytes_of(tmp_path / "out")
    assert found.keys() == expected.keys()
    for name, data in expected.items():
        if name.endswith(".ply"):
            assert found[name].split(b"end_header\n", 1)[1] == data.split(b"end_header\n", 1)[1]
        elif name.endswith(".open3d.json"):
            assert json.loads(found[name]) == json.loads(data)
        else:
            assert found[name] == data


@pytest.mark.usefixtures("without_open3d")
@pytest.mark.parametrize(
    ("option", "settings"),
    [
        ("mesh", replace(SETTINGS, mesh=True)),
        ("normals", replace(SETTINGS, points=PointOptions(normals=True))),
        ("outliers", replace(SETTINGS, points=PointOptions(outliers=True))),
    ],
)
def test_options_that_need_open3d_are_refused_before_any_output(tmp_path, option: str, settings: ReconstructSettings):
    with pytest.raises(CapabilityError, match=f"{option} needs Open3D: .* libEGL") as caught:
        reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE), out=tmp_path / "out", settings=settings)
    assert caught.value.exit_code == 6
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("open3d")
def test_meshes_are_resumed_with_the_same_bytes_and_overwritten(tmp_path):
    settings = replace(SETTINGS, mesh=True)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE, settings=settings), out=whole)
    resumed(reconstruct, CAPTURE.scene(), TruthPredictor(CAPTURE), out=broken, instants=3, settings=settings)
    assert bytes_of(broken) == bytes_of(whole)
    assert sum(name.startswith("mesh/") for name in bytes_of(whole)) == 9
    assert open_output(whole).run.mesh_voxel_size == open_output(broken).run.mesh_voxel_size
    reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE), out=whole, settings=SETTINGS, existing="overwrite")
    assert not (whole / "mesh").exists()
    assert open_output(whole).run.mesh_voxel_size is None


@pytest.mark.usefixtures("open3d")
def test_voxels_that_are_too_small_end_a_run_before_the_first_instant(tmp_path):
    settings = replace(SETTINGS, mesh=True, mesh_voxel=1e-4)
    with pytest.raises(UsageError, match=r"mesh_voxel=0\.0001 is too small for images"):
        reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE, settings=settings), out=tmp_path / "out")
    assert not (tmp_path / "out" / "points").exists()
