"""Motion at a single instant: a network has nothing to compare, so only masks from outside are a result."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from page4d.choices import Poses
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.networks.conditioning import Memory
from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS
from page4d.options import ReconstructSettings
from page4d.output.reader import open_output
from page4d.output.record import ChunkRecord, NetworkRecord
from page4d.run.predictor import CPU, NetworkPredictor, PredictedChunk
from page4d.run.reconstruct import reconstruct
from page4d.run.summary import empty_frames_notice
from page4d.scene.batches import FrameBatch, open_batches
from page4d.scene.records import PairedFrames, Scene

SETTINGS = ReconstructSettings(long_side=42, preview=False, check_calibration=False, poses=Poses.INPUT)


def scene_of(num_times: int) -> Scene:
    capture = SyntheticCapture(seed=3, num_views=2, num_times=num_times, image_size=(28, 42), spacing_deg=20)
    return capture.scene()


@pytest.fixture(scope="module")
def predictor() -> NetworkPredictor:
    """Return a network that predicts motion everywhere."""
    torch.manual_seed(0)
    network = build_network(PRESETS["mv-tiny"]).eval()
    with torch.no_grad():
        network.get_parameter("aggregator.dynamic.head.mask_head.4.bias").fill_(50.0)
    record = NetworkRecord(name="moves everywhere", trained=True)
    return NetworkPredictor(network=network, device=CPU, settings=SETTINGS, record=record)


def moving_points(out: Path) -> int:
    output = open_output(out)
    return sum(int(output.points(index).dynamic.sum()) for index in range(output.num_times))


def test_a_network_estimates_motion_at_two_instants_but_not_at_one(predictor: NetworkPredictor) -> None:
    with open_batches(scene_of(2), long_side=42, multiple=14) as reader:
        two, one = reader.read(0, 2), reader.read(1, 2)
    moving, still = (predictor.predict(batch).predictions.dynamic for batch in (two, one))
    assert bool((moving > 0.5).all())
    assert not still.any()


def test_a_run_of_one_instant_writes_no_motion(predictor: NetworkPredictor, tmp_path: Path) -> None:
    for num_times in (1, 2):
        out = tmp_path / str(num_times)
        reconstruct(scene_of(num_times), predictor, out=out)
        has_motion = num_times > 1
        assert (out / "dynamic").exists() == has_motion
        assert (moving_points(out) > 0) == has_motion
        assert (open_output(out).dynamic(0, "cam01") is not None) == has_motion


def test_masks_from_outside_are_the_motion_of_a_single_instant(predictor: NetworkPredictor, tmp_path: Path) -> None:
    scene = scene_of(1)
    masked = [replace(view, mask=PairedFrames(frames=view.source, indices=(0,))) for view in scene.views]
    reconstruct(replace(scene, views=tuple(masked)), predictor, out=tmp_path / "out")
    moving = open_output(tmp_path / "out").dynamic(0, "cam01")
    assert 0 < moving.mean() < 1


def test_chunks_of_one_instant_among_longer_ones_have_no_motion(predictor: NetworkPredictor, tmp_path: Path) -> None:
    record = reconstruct(scene_of(3), predictor, out=tmp_path / "out", chunk=2, overlap=0)
    lengths = [chunk.stop - chunk.start for chunk in record.chunks]
    assert sorted(lengths) == [1, 2]
    assert "1 of 2 chunks have 1 instant: no motion is estimated there" in record.warnings
    output = open_output(tmp_path / "out")
    alone = next(chunk.start for chunk in record.chunks if chunk.stop - chunk.start == 1)
    for index in range(3):
        moving = output.dynamic(index, "cam01")
        assert moving.any() == (index != alone)


@dataclass(frozen=True, kw_only=True)
class WithEmptyFrames(NetworkPredictor):
    """Predicts no depth in the first view at the instants from 0.05 s on."""

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> PredictedChunk:
        predicted = super().predict(batch, memory)
        predicted.predictions.valid[:, batch.times > 0.05, 0] = False
        return predicted


def test_frames_without_depth_are_counted_in_one_warning(predictor: NetworkPredictor, tmp_path: Path) -> None:
    scene = scene_of(5)
    late = int((torch.from_numpy(scene.times) > 0.05).sum())
    empty = WithEmptyFrames(network=predictor.network, device=CPU, settings=SETTINGS)
    record = reconstruct(scene, empty, out=tmp_path / "out", chunk=3, overlap=1)
    assert sum(chunk.empty_frames[0] for chunk in record.chunks) == late
    assert [text for text in record.warnings if "no pixel has depth" in text] == [
        f"no pixel has depth in {late} of 5 frames of cam01"
    ]


def test_a_record_without_counts_of_empty_frames_counts_none() -> None:
    chunks = [ChunkRecord(start=start, stop=start + 2, overlap=0, seconds=0.0) for start in (0, 2)]
    counted = chunks[1].model_copy(update={"empty_frames": [0, 1]})
    assert empty_frames_notice(chunks, ("a", "b"), 4) is None
    notice = empty_frames_notice([chunks[0], counted], ("a", "b"), 4)
    assert notice.text == "no pixel has depth in 1 of 4 frames of b"
