"""What a network is told besides images: times, calibrated cameras, and what it remembers of the chunk before."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from page4d.errors import UsageError
from page4d.export.run_record import NetworkRecord
from page4d.inference.output_policy import ExistingOutput
from page4d.inference.predictor import CPU, NetworkPredictor, Predicted, times_in_frames
from page4d.inference.reconstruct import reconstruct
from page4d.inference.settings import ReconstructSettings
from page4d.inference.world import Poses
from page4d.models.conditioning import Memory
from page4d.models.config import PRESETS, EpipolarConfig, MatchConfig, SparseConfig, SparseStrategy, TimeEncoding
from page4d.models.network import ViewTimeNetwork, build_network
from page4d.scene.batches import open_batches
from page4d.scene.records import FrameBatch
from page4d.synthetic.capture import SyntheticCapture

CAPTURE = SyntheticCapture(seed=3, num_views=2, num_times=7, image_size=(28, 42), spacing_deg=20)
SETTINGS = ReconstructSettings(chunk=3, overlap=1, poses=Poses.PREDICTED, preview=False)
RECORD = NetworkRecord(name="page4d-mv", trained=False)
TINY = replace(PRESETS["mv-tiny"], layer_scale=None)


def opened(config) -> ViewTimeNetwork:
    """Build a network in which nothing is closed and everything has weight."""
    torch.manual_seed(0)
    network = build_network(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 2:
                parameter.mul_(10)
            if not parameter.any():
                parameter.normal_(std=0.3).abs_()
    return network


@dataclass(frozen=True, kw_only=True)
class Forgetful(NetworkPredictor):
    """Is never told what was remembered."""

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> Predicted:  # noqa: ARG002  what is ignored
        return super().predict(batch, None)


@dataclass(frozen=True, kw_only=True)
class StopsAt(NetworkPredictor):
    """Fails at the chunk that begins at an instant."""

    time: float = 0.0

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> Predicted:
        if batch.times[0] >= self.time - 1e-6:
            raise UsageError("stopped", "by the test")
        return super().predict(batch, memory)


def files(out: Path) -> dict[str, bytes]:
    """Return what the output holds, the record of the run apart: it has times of day in it."""
    kept = [path for path in out.rglob("*") if path.is_file() and path.suffix != ".json"]
    return {str(path.relative_to(out)): path.read_bytes() for path in kept}


@pytest.fixture(scope="module")
def remembering() -> ViewTimeNetwork:
    return opened(replace(TINY, sparse=SparseConfig(layers=(2,), strategy=SparseStrategy.MEMORY)))


def test_memory_reaches_the_next_chunk_and_a_continued_run(remembering: ViewTimeNetwork, tmp_path: Path) -> None:
    scene, options = CAPTURE.scene(), {"network": remembering, "device": CPU}
    reconstruct(scene, NetworkPredictor(**options), RECORD, tmp_path / "whole", SETTINGS)
    reconstruct(scene, Forgetful(**options), RECORD, tmp_path / "forgetful", SETTINGS)
    whole, forgetful = files(tmp_path / "whole"), files(tmp_path / "forgetful")
    assert {name for name in whole if name.startswith("state/memory")} == {
        f"state/memory_{index:05d}.safetensors" for index in range(3)
    }
    clouds = sorted(name for name in whole if name.startswith("points/"))
    first, last = clouds[0], clouds[-1]
    assert whole[first] == forgetful[first]
    assert whole[last] != forgetful[last]
    for time in CAPTURE.times[[2, 4]]:
        out = tmp_path / f"stopped_{time:.2f}"
        with pytest.raises(UsageError, match="stopped"):
            reconstruct(scene, StopsAt(**options, time=float(time)), RECORD, out, SETTINGS)
        reconstruct(scene, NetworkPredictor(**options), RECORD, out, SETTINGS, existing=ExistingOutput.RESUME)
        assert files(out) == whole


@pytest.mark.parametrize("part", ["epipolar", "known_cameras"])
def test_calibrated_cameras_reach_networks_that_can_use_them(part: str) -> None:
    change = {"epipolar": EpipolarConfig(layers=(1, 2), band=0.2)} if part == "epipolar" else {"known_cameras": True}
    network = opened(replace(TINY, **change))
    plain = opened(TINY)
    with open_batches(CAPTURE.scene(), 42, 14) as reader:
        batch = reader.read(0, 2)
    for told in (True, False):
        depths = [
            NetworkPredictor(network=asked, device=CPU, tells_cameras=told).predict(given).predictions.depth
            for asked, given in ((network, batch), (network, replace(batch, cameras=None)), (plain, batch))
        ]
        assert torch.equal(depths[0], depths[1]) != told
        assert depths[2].isfinite().all()


def test_cameras_and_depth_are_refined_where_a_network_looks_for_matches() -> None:
    matching, plain = opened(replace(TINY, matches=MatchConfig(dim=8, hidden=8))), opened(TINY)
    with open_batches(CAPTURE.scene(), 42, 14) as reader:
        batch = replace(reader.read(0, 2), cameras=None)
    for network, differs in ((matching, True), (plain, False)):
        refined, own = (
            NetworkPredictor(network=network, device=CPU, refines=refines).predict(batch).predictions
            for refines in (True, False)
        )
        for one, other in ((refined.depth, own.depth), (refined.cameras.centers, own.cameras.centers)):
            assert torch.equal(one, other) != differs
            assert one.isfinite().all()


def test_times_reach_networks_that_encode_them() -> None:
    network = opened(replace(TINY, time_encoding=TimeEncoding.ALIBI))
    with open_batches(CAPTURE.scene(), 42, 14) as reader:
        batch = reader.read(0, 4)
    gap = replace(batch, times=batch.times + torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=batch.times.dtype))
    predictor = NetworkPredictor(network=network, device=CPU)
    even, later, uneven = (
        predictor.predict(given).predictions.depth for given in (batch, replace(batch, times=batch.times + 60), gap)
    )
    torch.testing.assert_close(even, later, rtol=0, atol=1e-5)
    assert (even - uneven).abs().max() > 1e-4


def test_times_count_frames() -> None:
    assert times_in_frames(torch.tensor([5.0])).tolist() == [0]
    counted = times_in_frames(torch.tensor([3.0, 3.04, 3.08, 3.16], dtype=torch.float64))
    torch.testing.assert_close(counted, torch.tensor([0.0, 1, 2, 4], dtype=torch.float64))
