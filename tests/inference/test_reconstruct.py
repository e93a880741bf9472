"""A whole run without a network: the truth goes in, and must come out of every file."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from page4d.conventions import Scale
from page4d.errors import InputError, InterruptedRunError, MemoryBudgetError, UsageError, WeightsError
from page4d.export.output import open_output
from page4d.export.points import PointOptions, PointSource
from page4d.export.run_record import NetworkRecord
from page4d.inference.output_policy import ExistingOutput
from page4d.inference.progress import SilentObserver
from page4d.inference.reconstruct import reconstruct
from page4d.inference.settings import ReconstructSettings
from page4d.predictions import Predictions
from page4d.scene.images import ImageFolderSource
from page4d.scene.records import PairedFrames, Scene
from page4d.synthetic.capture import SyntheticCapture
from tests.inference.truth import TruthPredictor, random_similarity

CAPTURE = SyntheticCapture(seed=5, num_views=2, num_times=9, image_size=(24, 32))
NETWORK = NetworkRecord(name="truth", trained=True)
SETTINGS = ReconstructSettings(chunk=4, overlap=2, preview=False)


def uncalibrated(scene: Scene) -> Scene:
    return replace(scene, views=tuple(replace(view, camera=None) for view in scene.views), scale=Scale.ARBITRARY)


def spoiled(start: int, predictions: Predictions) -> Predictions:
    return predictions.transformed(random_similarity(start))


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Return every file of the contract but run.json, which holds times of day."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "run.json" and "state" not in path.parts and path.name[0] != "."
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    reconstruct(uncalibrated(CAPTURE.scene()), TruthPredictor(CAPTURE, spoiled), NETWORK, out, SETTINGS)
    return out


def test_chunks_in_worlds_of_their_own_come_out_as_one(finished: Path):
    output = open_output(finished)
    assert output.run.scale is Scale.ARBITRARY
    assert output.num_times == 9
    truth = CAPTURE.cameras.world_to_camera
    first = truth[0, 0]
    expected = truth @ torch.linalg.inv(first)
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


def test_calibrated_cameras_come_back_to_the_digit_and_depth_in_metres(tmp_path: Path):
    reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE, spoiled), NETWORK, tmp_path / "out", SETTINGS)
    output = open_output(tmp_path / "out")
    assert output.run.scale is Scale.METRIC
    assert torch.equal(output.cameras.world_to_camera, CAPTURE.cameras.world_to_camera.double())
    for view, name in enumerate(output.view_names):
        true_depth = CAPTURE.rendered(8, view).depth.numpy()
        assert np.abs(output.depth(8, name) - true_depth).max() <= 0.0006


class StopAt(SilentObserver):
    """Interrupts like a signal would, once so many instants are written."""

    def __init__(self, instants: int) -> None:
        self.instants = instants

    def progress(self, done: int, total: int) -> None:
        del total
        if done == self.instants:
            raise InterruptedRunError("stop", "", 15)


@pytest.mark.parametrize("instants", [0, 1, 2, 3, 5, 8])
def test_an_interrupted_run_ends_with_the_same_bytes(tmp_path: Path, finished: Path, instants: int):
    scene, out = uncalibrated(CAPTURE.scene()), tmp_path / "out"
    with pytest.raises(InterruptedRunError, match=r"after \d of 9 frames") as stopped:
        reconstruct(scene, TruthPredictor(CAPTURE, spoiled), NETWORK, out, SETTINGS, observer=StopAt(instants))
    assert stopped.value.exit_code == 143
    again = TruthPredictor(CAPTURE, spoiled)
    reconstruct(scene, again, NETWORK, out, SETTINGS, existing=ExistingOutput.RESUME)
    assert bytes_of(out) == bytes_of(finished)
    assert len(again.calls) <= 4
    assert open_output(out).run.status == "complete"


def test_resuming_a_finished_run_predicts_nothing(tmp_path: Path):
    scene, out = CAPTURE.scene(), tmp_path / "out"
    reconstruct(scene, TruthPredictor(CAPTURE), NETWORK, out, SETTINGS)
    before = bytes_of(out)
    again = TruthPredictor(CAPTURE)
    reconstruct(scene, again, NETWORK, out, SETTINGS, existing=ExistingOutput.RESUME)
    assert again.calls == []
    assert bytes_of(out) == before


def test_a_lost_file_is_made_again(tmp_path: Path, finished: Path):
    scene, out = uncalibrated(CAPTURE.scene()), tmp_path / "out"
    reconstruct(scene, TruthPredictor(CAPTURE, spoiled), NETWORK, out, SETTINGS)
    (out / "points" / "frame_000004.ply").unlink()
    reconstruct(scene, TruthPredictor(CAPTURE, spoiled), NETWORK, out, SETTINGS, existing=ExistingOutput.RESUME)
    assert bytes_of(out) == bytes_of(finished)


def test_resume_refuses_other_settings_and_names_them(tmp_path: Path):
    scene, out = CAPTURE.scene(), tmp_path / "out"
    stopped, resume = StopAt(3), ExistingOutput.RESUME
    with pytest.raises(InterruptedRunError):
        reconstruct(scene, TruthPredictor(CAPTURE), NETWORK, out, SETTINGS, observer=stopped)
    for settings, network, differs in [
        (replace(SETTINGS, chunk=5), NETWORK, "chunk"),
        (replace(SETTINGS, long_side=24), NETWORK, "size"),
        (replace(SETTINGS, points=PointOptions(voxel_size=0.1)), NETWORK, "voxel"),
        (SETTINGS, NETWORK.model_copy(update={"preset": "another"}), "preset"),
    ]:
        with pytest.raises(UsageError, match=rf"differs: {differs}\)"):
            reconstruct(scene, TruthPredictor(CAPTURE), network, out, settings, existing=resume)
    with_preview = replace(SETTINGS, preview=True)
    record = reconstruct(
        scene, TruthPredictor(CAPTURE), NETWORK, out, with_preview, command={"calibration": "there"}, existing=resume
    )
    assert record.status == "complete"


def test_a_resumed_run_keeps_the_warnings_of_the_first_part(tmp_path: Path):
    scene, out = CAPTURE.scene(), tmp_path / "out"
    settings = ReconstructSettings(chunk=8, overlap=1, preview=False)
    with pytest.raises(InterruptedRunError):
        reconstruct(scene, TruthPredictor(CAPTURE, fails_above(4)), NETWORK, out, settings, observer=StopAt(5))
    record = reconstruct(scene, TruthPredictor(CAPTURE), NETWORK, out, settings, existing=ExistingOutput.RESUME)
    assert any("out of memory" in warning for warning in record.warnings)
    assert max(chunk.stop - chunk.start for chunk in record.chunks) == 2


@pytest.mark.parametrize("overlap", [3, 4])
def test_the_largest_overlaps_run_through(tmp_path: Path, overlap: int):
    settings = ReconstructSettings(chunk=2 * overlap, overlap=overlap, preview=False)
    scene = uncalibrated(CAPTURE.scene())
    record = reconstruct(scene, TruthPredictor(CAPTURE, spoiled), NETWORK, tmp_path / "out", settings)
    assert record.status == "complete"


def test_chunks_with_nothing_to_join_them_are_refused_before_any_work(tmp_path: Path):
    settings = ReconstructSettings(chunk=4, overlap=0, preview=False)
    with pytest.raises(UsageError, match="nothing to join them by"):
        reconstruct(uncalibrated(CAPTURE.scene()), TruthPredictor(CAPTURE), NETWORK, tmp_path / "out", settings)
    assert not (tmp_path / "out").exists()
    record = reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE), NETWORK, tmp_path / "out", settings)
    assert [chunk.overlap for chunk in record.chunks] == [0, 0, 0]


def test_points_that_are_not_predicted_are_refused_before_any_work(tmp_path: Path):
    settings = ReconstructSettings(points=PointOptions(source=PointSource.POINTS))
    with pytest.raises(UsageError, match="only depth is predicted"):
        reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE), NETWORK, tmp_path / "out", settings)
    assert not (tmp_path / "out").exists()


def test_cameras_that_are_not_numbers_end_the_run_before_anything_is_built_on_them(tmp_path: Path):
    def spoil(start: int, predictions: Predictions) -> Predictions:
        poses = predictions.cameras.world_to_camera.clone()
        poses[0, -1, 1, 0, 3] = torch.nan if start else 0.0
        return replace(predictions, cameras=replace(predictions.cameras, world_to_camera=poses))

    with pytest.raises(WeightsError, match=r"view 'cam02' at 0\.\d+ s is not finite"):
        reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE, spoil), NETWORK, tmp_path / "out", SETTINGS)


def test_an_output_over_its_own_inputs_is_refused(tmp_path: Path):
    folder = tmp_path / "depth" / "cam01"
    folder.mkdir(parents=True)
    frames = [folder / f"{index:06d}.png" for index in range(9)]
    for frame in frames:
        frame.write_bytes(b"")
    scene = CAPTURE.scene()
    source = ImageFolderSource(
        path=folder, files=tuple(frames), size=(24, 32), frame_times=np.arange(9) / 12, fps=12.0
    )
    read = PairedFrames(frames=source, indices=tuple(range(9)))
    scene = replace(scene, views=(replace(scene.views[0], depth=read), scene.views[1]))
    with pytest.raises(UsageError, match="would overwrite"):
        reconstruct(scene, TruthPredictor(CAPTURE), NETWORK, tmp_path, SETTINGS, existing=ExistingOutput.RESUME)


def test_files_that_page4d_did_not_write_are_never_overwritten(tmp_path: Path):
    (tmp_path / "points").mkdir()
    (tmp_path / "points" / "frame_000000.ply").write_text("mine")
    with pytest.raises(UsageError, match="did not write"):
        reconstruct(
            CAPTURE.scene(), TruthPredictor(CAPTURE), NETWORK, tmp_path, SETTINGS, existing=ExistingOutput.OVERWRITE
        )
    assert (tmp_path / "points" / "frame_000000.ply").read_text() == "mine"


def test_an_existing_result_is_refused_and_overwriting_spares_foreign_files(tmp_path: Path):
    out = tmp_path / "out"
    reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE), NETWORK, out, SETTINGS)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="already holds a result"):
        reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE), NETWORK, out, SETTINGS)
    shorter = SyntheticCapture(seed=5, num_views=2, num_times=3, image_size=(24, 32))
    reconstruct(shorter.scene(), TruthPredictor(shorter), NETWORK, out, SETTINGS, existing=ExistingOutput.OVERWRITE)
    assert (out / "notes.txt").read_text() == "mine"
    assert len(list((out / "points").iterdir())) == 3
    assert open_output(out).num_times == 3


def fails_above(length: int) -> Callable[[int, Predictions], Predictions]:
    def spoil(_: int, predictions: Predictions) -> Predictions:
        if predictions.num_times > length:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return predictions

    return spoil


def test_a_chunk_that_does_not_fit_is_halved_and_the_run_finishes(tmp_path: Path):
    settings = ReconstructSettings(chunk=8, overlap=1, preview=False)
    out = tmp_path / "out"
    record = reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE, fails_above(3)), NETWORK, out, settings)
    assert max(chunk.stop - chunk.start for chunk in record.chunks) <= 3
    assert any("out of memory" in warning for warning in record.warnings)
    assert json.loads((out / "state" / "run.json").read_text())["plan"] == [
        [chunk.start, chunk.stop, chunk.overlap] for chunk in record.chunks
    ]
    assert torch.equal(open_output(out).cameras.world_to_camera, CAPTURE.cameras.world_to_camera.double())


def test_memory_that_never_suffices_ends_with_advice(tmp_path: Path):
    settings = ReconstructSettings(chunk=8, overlap=1, preview=False)
    with pytest.raises(MemoryBudgetError, match="out of memory even with") as failure:
        reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE, fails_above(0)), NETWORK, tmp_path / "out", settings)
    assert "--size" in failure.value.hint
    assert failure.value.exit_code == 7


def test_other_errors_are_not_mistaken_for_memory(tmp_path: Path):
    def spoil(_: int, __: Predictions) -> Predictions:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE, spoil), NETWORK, tmp_path / "out", SETTINGS)


def test_one_view_and_one_instant_run(tmp_path: Path):
    capture = SyntheticCapture(seed=2, num_views=1, num_times=1, image_size=(24, 32))
    record = reconstruct(capture.scene(), TruthPredictor(capture), NETWORK, tmp_path / "out")
    assert record.status == "complete"
    assert (tmp_path / "out" / "preview" / "contact_sheet.png").exists()
    assert any("no baseline" in warning for warning in record.warnings)


def torn(start: int, predictions: Predictions) -> Predictions:
    """Bend the depth of the chunks from instant 4 on, so that no similarity makes them fit."""
    height = predictions.depth.shape[-2]
    slope = torch.linspace(0.5, 2.0, height, dtype=predictions.depth.dtype)[:, None]
    return replace(predictions, depth=predictions.depth * slope) if start >= 4 else predictions


def test_a_seam_that_does_not_fit_is_a_warning_or_ends_a_strict_run_before_it_is_written(tmp_path: Path):
    scene, out, strict = uncalibrated(CAPTURE.scene()), tmp_path / "out", replace(SETTINGS, strict_seams=True)
    with pytest.raises(InputError, match=r"do not fit together at instant 4: off by \d+\.\d% of the depth") as failed:
        reconstruct(scene, TruthPredictor(CAPTURE, torn), NETWORK, out, strict)
    assert failed.value.exit_code == 3
    assert len(list((out / "points").iterdir())) == 4
    resume = ExistingOutput.RESUME
    record = reconstruct(scene, TruthPredictor(CAPTURE, torn), NETWORK, out, SETTINGS, existing=resume)
    assert any("seams between chunks do not fit" in warning for warning in record.warnings)
    with pytest.raises(InputError, match="at instant 4"):
        reconstruct(scene, TruthPredictor(CAPTURE, torn), NETWORK, out, strict, existing=resume)
