"""Rigs of static and moving views, decided from pixels, and rigs of which some cameras are registered."""

from dataclasses import replace

import pytest
import torch

from page4d.choices import CameraMotion, Poses, Registration
from page4d.geometry.rotation import rotation_angle
from page4d.geometry.time_axis import join_times
from page4d.geometry.transforms import invert_rigid
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.records import Predictions
from page4d.rig.camera_motion import ViewMotion
from page4d.run.chunks import plan_chunks
from page4d.run.reconstruct import reconstruct
from page4d.run.stages.static_rig import RigState, StaticRig, StaticRigAligner, rig_notice
from page4d.run.stages.world import World
from tests.run.test_reconstruct import bytes_of, resumed, uncalibrated
from tests.run.test_static_rig import CAPTURE, SETTINGS, drifting, shaken, shaken_chunks, stitched
from tests.run.truth import TruthPredictor, exact_predictions, random_similarity

MOTIONS = tuple(
    ViewMotion(view=f"cam0{view}", is_static=view != 2, share=0.0 if view == 2 else 0.8, displacement_px=1.0)
    for view in (1, 2, 3)
)


def aligner(requested: CameraMotion = CameraMotion.AUTO, registered: StaticRig | None = None) -> StaticRigAligner:
    world = World(uncalibrated(CAPTURE.scene()), Poses.INPUT, predictor_uses_rig=False)
    return StaticRigAligner(requested, lambda first: world.place_first(first, None), lambda: MOTIONS, registered)


def truth() -> Predictions:
    """The capture with a second camera that turns by 0.02 rad per instant."""
    still = exact_predictions(CAPTURE).at_times(0, 20)
    poses = still.cameras.world_to_camera.clone()
    poses[:, :, 1] = drifting(still, 0.02).cameras.world_to_camera[:, :, 1]
    return replace(still, cameras=replace(still.cameras, world_to_camera=poses))


def run(found: StaticRigAligner) -> Predictions:
    parts = stitched(shaken_chunks(truth(), plan_chunks(20, 8, 2)), found)
    return join_times([part.predictions for part in parts])


def turned(whole: Predictions) -> torch.Tensor:
    """Errors of rotations relative to the first camera [T, V] in radians."""
    poses, true = (part.cameras.world_to_camera[0] for part in (whole, truth()))
    relative = [each @ invert_rigid(each[:1, :1]) for each in (poses, true)]
    return rotation_angle(relative[0][..., :3, :3], relative[1][..., :3, :3])


def test_static_views_get_one_camera_and_moving_ones_keep_theirs_over_chunks_in_one_world():
    found = aligner()
    whole = run(found)
    assert found.record.cameras == "mixed"
    assert [view.is_static for view in found.record.views] == [True, False, True]
    poses = whole.cameras.world_to_camera
    assert torch.equal(poses[:, :, [0, 2]], poses[:, :1, [0, 2]].expand(-1, 20, -1, -1, -1))
    assert float(turned(whole).max()) < 0.04, "the noise of single cameras is 0.003 per axis"
    ratio = (whole.depth / truth().depth)[truth().valid & (truth().depth > 0)].log()
    assert float((ratio - ratio.median()).abs().max()) < 0.02
    assert "static except cam02" in rig_notice(found.record).text
    state = RigState.of(found.record, found.rig, (24, 32))
    again = RigState.model_validate_json(state.model_dump_json()).static_rig()
    assert again.views == (0, 2)
    assert torch.equal(again.cameras.world_to_camera, found.rig.cameras.world_to_camera)


def test_registered_cameras_are_kept_and_define_the_world():
    views = (0, 2)
    known = truth().cameras[0, 0, list(views)]
    whole = run(aligner(registered=StaticRig(cameras=known, views=views)))
    expected = known.world_to_camera.to(torch.float64)
    torch.testing.assert_close(whole.cameras.world_to_camera[0, :, views], expected.expand(20, -1, -1, -1))
    true = truth().cameras.world_to_camera[0, :, 1]
    assert float(rotation_angle(whole.cameras.world_to_camera[0, :, 1, :3, :3], true[:, :3, :3]).max()) < 0.04


@pytest.mark.parametrize(
    ("requested", "text"),
    [("static", "camera_motion='static', but cam02"), ("moving", "camera_motion='moving', but cam01, cam03")],
)
def test_both_directions_of_a_wrong_option_are_named(requested: str, text: str):
    found = aligner(CameraMotion(requested))
    placed = found.anchor(truth().at_times(0, 8), None)
    assert (placed is None) is (requested == "moving")
    assert text in rig_notice(found.record).text


def test_a_resumed_run_of_static_and_moving_views_writes_the_same_bytes(tmp_path, monkeypatch):
    capture = SyntheticCapture(seed=5, num_views=3, num_times=9, image_size=(24, 32))
    scene, settings = uncalibrated(capture.scene()), replace(SETTINGS, chunk=5, register=Registration.NETWORK)
    motions = tuple(replace(motion, view=name) for motion, name in zip(MOTIONS, scene.view_names, strict=True))
    monkeypatch.setattr("page4d.rig.evidence.measure_camera_motion", lambda *_: motions)

    def disturb(start: int, part: Predictions) -> Predictions:
        return shaken(part, start).transformed(random_similarity(start))

    whole, out, predictor = tmp_path / "whole", tmp_path / "stopped", TruthPredictor(capture, disturb)
    record = reconstruct(scene, predictor, out=whole, settings=settings)
    assert record.rig.cameras == "mixed"
    resumed(reconstruct, scene, predictor, out=out, instants=6, settings=settings)
    assert bytes_of(out) == bytes_of(whole)
