"""Runs of small networks of published architectures: several chunks, views of mixed sizes, calibration, resuming."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from page4d.choices import ExistingOutput, Poses
from page4d.conventions import ScaleSource
from page4d.errors import InterruptedRunError, UsageError
from page4d.networks.config import NetworkConfig
from page4d.networks.network import build_network
from page4d.options import NetworkOptions, ReconstructSettings
from page4d.output.reader import open_output
from page4d.run.predictor import CPU, NetworkPredictor, predictor_for
from page4d.run.reconstruct import reconstruct
from page4d.scene.batches import open_batches
from page4d.scene.records import PairedFrames
from tests.networks.small_networks import OMEGA_LIKE, SMALL_DA3, SMALL_DA3_NESTED, SMALL_PI3X, fill_zeros
from tests.run.test_mixed_rig import CAPTURE
from tests.run.test_reconstruct import StopAt, bytes_of, uncalibrated

NETWORKS: Mapping[str, NetworkConfig] = {
    "da3": SMALL_DA3,
    "da3-nested": SMALL_DA3_NESTED,
    "pi3x": SMALL_PI3X,
    "vggt-omega": OMEGA_LIKE,
}
TAKE_CAMERAS = ("da3", "da3-nested", "pi3x")
METRIC = ("da3-nested", "pi3x")


@cache
def predictor_of(name: str) -> NetworkPredictor:
    torch.manual_seed(0)
    network = fill_zeros(build_network(NETWORKS[name]).eval())
    side = 3 * network.config.patch_size
    settings = ReconstructSettings(chunk=4, overlap=2, long_side=side, preview=False)
    return NetworkPredictor(network=network, device=CPU, settings=settings)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_run_of_several_chunks_is_in_the_frame_of_the_first_camera(name: str, tmp_path: Path) -> None:
    scene, predictor = uncalibrated(CAPTURE.scene()), predictor_of(name)
    record = reconstruct(scene, predictor, out=tmp_path / "whole")
    assert [(chunk.start, chunk.stop) for chunk in record.chunks] == [(0, 4), (2, 6)]
    assert record.scale_source is (ScaleSource.NETWORK if name in METRIC else None)
    first = open_output(tmp_path / "whole").cameras.world_to_camera[0, 0]
    torch.testing.assert_close(first, torch.eye(4, dtype=first.dtype), rtol=0, atol=1e-6)
    if name == "da3":
        with pytest.raises(InterruptedRunError):
            reconstruct(scene, predictor, out=tmp_path / "parts", observer=StopAt(3))
        reconstruct(scene, predictor, out=tmp_path / "parts", existing=ExistingOutput.RESUME)
        assert bytes_of(tmp_path / "parts") == bytes_of(tmp_path / "whole")


@pytest.mark.parametrize("name", TAKE_CAMERAS)
def test_a_calibrated_run_has_the_cameras_of_the_rig(name: str, tmp_path: Path) -> None:
    reconstruct(CAPTURE.scene(), predictor_of(name), out=tmp_path / "out")
    found = open_output(tmp_path / "out").cameras.world_to_camera
    for view in range(CAPTURE.num_views):
        assert torch.equal(found[:, view], CAPTURE.cameras_of(view).world_to_camera.double())


@pytest.mark.parametrize("name", NETWORKS)
def test_calibrated_cameras_condition_networks_that_take_them_unless_poses_are_predicted(name: str) -> None:
    predictor = predictor_of(name)
    with open_batches(CAPTURE.scene(), 3 * predictor.multiple, predictor.multiple) as reader:
        batch = reader.read(0, 2)
    for poses in Poses:
        chosen = predictor.with_settings(replace(predictor.settings, poses=poses))
        given, without = (chosen.predict(each).predictions.depth for each in (batch, replace(batch, cameras=None)))
        assert torch.equal(given, without) != (poses is Poses.INPUT and name in TAKE_CAMERAS)


def test_measured_depth_is_an_input_of_networks_that_take_it() -> None:
    for name in NETWORKS:
        predictor = predictor_of(name)
        with open_batches(CAPTURE.scene(), 3 * predictor.multiple, predictor.multiple) as reader:
            batch = reader.read(0, 2)
        measured = 1 + torch.rand(batch.valid.shape, generator=torch.Generator().manual_seed(0))
        given, empty, without = (
            predictor.predict(replace(batch, depth=depth)).predictions.depth
            for depth in (measured, torch.zeros_like(measured), None)
        )
        assert torch.equal(empty, without)
        assert torch.equal(given, without) == (name != "pi3x")


def test_depth_with_a_network_that_takes_none_is_refused() -> None:
    scene = CAPTURE.scene()
    view = scene.views[0]
    frames = PairedFrames(frames=view.source, indices=view.indices)
    with_depth = replace(scene, views=(replace(view, depth=frames), *scene.views[1:]))
    options = NetworkOptions(untrained=True, preset="mv-tiny")
    with pytest.raises(UsageError, match="depth with a network that takes no depth"):
        predictor_for(with_depth, options, ReconstructSettings())
