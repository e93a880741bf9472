"""Conditioning of a network in a run: times, calibrated cameras, and the memory of the previous chunk."""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from kornia.feature import XFeat
from safetensors.torch import save_file
from torch.nn import functional

from page4d.batch.ray import _ChunkWorker
from page4d.choices import CameraMotion, DepthSize, ExistingOutput, MaskMeaning, Poses, SparseStrategy, TimeEncoding
from page4d.errors import InterruptedRunError, UsageError
from page4d.geometry.camera import Cameras
from page4d.geometry.pixels import fit_views
from page4d.geometry.time_axis import at_instants
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.networks.conditioning import Memory
from page4d.networks.config import NetworkConfig
from page4d.networks.config_parts import EpipolarConfig, MaskConfig, MatchConfig, SparseConfig
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.presets import PRESETS
from page4d.options import ReconstructSettings
from page4d.output.reader import open_output
from page4d.output.record import NetworkRecord
from page4d.records import Predictions
from page4d.run.plan import plan_run
from page4d.run.predictor import CPU, NetworkPredictor, PredictedChunk, RigOutput, build_predictor, times_in_frames
from page4d.run.reconstruct import reconstruct
from page4d.run.run import Run
from page4d.scene.batches import UNKNOWN_MOTION, FrameBatch, open_batches, open_placed_batches
from page4d.scene.records import PairedFrames, with_instants
from page4d.stereo.background import Background
from page4d.stereo.consensus import FusedBackground, fuse_background
from page4d.stereo.descriptors import DESCRIPTOR_MODEL, dense_descriptors
from page4d.stereo.refine import refinement_of
from page4d.stereo.state import StaticDepth
from page4d.weights.store import save_network
from tests.run.test_reconstruct import StopAt, bytes_of, resumed
from tests.run.truth import TruthPredictor, exact_predictions, random_similarity

pytestmark = pytest.mark.usefixtures("constant_forecast", "few_steps")

CAPTURE = SyntheticCapture(seed=3, num_views=2, num_times=7, image_size=(28, 42), spacing_deg=20)
SETTINGS = ReconstructSettings(chunk=3, overlap=1, poses=Poses.PREDICTED, preview=False)
TINY = replace(PRESETS["mv-tiny"], layer_scale=None)


@cache
def without_zeros(config: NetworkConfig) -> ViewTimeNetwork:
    """Build a network without zero-initialized parameters, so that every input has an effect."""
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
class WithoutMemory(NetworkPredictor):
    """Ignores the memory of the previous chunk."""

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> PredictedChunk:  # noqa: ARG002  ignored
        return super().predict(batch, None)


def files(out: Path) -> dict[str, bytes]:
    """Return the content of all files except JSON records, which contain run times."""
    kept = [path for path in out.rglob("*") if path.is_file() and path.suffix != ".json"]
    return {str(path.relative_to(out)): path.read_bytes() for path in kept}


@pytest.fixture(scope="module")
def network_with_memory() -> ViewTimeNetwork:
    return without_zeros(replace(TINY, sparse=SparseConfig(layers=(2,), strategy=SparseStrategy.MEMORY)))


def test_memory_is_passed_to_the_next_chunk_and_to_a_resumed_run(network_with_memory: ViewTimeNetwork, tmp_path):
    scene, options = CAPTURE.scene(), {"network": network_with_memory, "device": CPU}
    reconstruct(scene, NetworkPredictor(**options), out=tmp_path / "whole", settings=SETTINGS)
    reconstruct(scene, WithoutMemory(**options), out=tmp_path / "without_memory", settings=SETTINGS)
    whole, without_memory = files(tmp_path / "whole"), files(tmp_path / "without_memory")
    assert {name for name in whole if name.startswith("state/memory")} == {
        f"state/memory_{index:05d}.safetensors" for index in range(3)
    }
    clouds = sorted(name for name in whole if name.startswith("points/"))
    first, last = clouds[0], clouds[-1]
    assert whole[first] == without_memory[first]
    assert whole[last] != without_memory[last]
    resumed(reconstruct, scene, NetworkPredictor(**options), out=tmp_path / "cut", instants=6, settings=SETTINGS)
    assert files(tmp_path / "cut") == whole


@pytest.mark.parametrize("part", ["epipolar", "known_cameras"])
def test_calibrated_cameras_condition_networks_unless_poses_are_predicted(part: str):
    change = {"epipolar": EpipolarConfig(layers=(1, 2), band=0.2)} if part == "epipolar" else {"known_cameras": True}
    network = without_zeros(replace(TINY, **change))
    plain = without_zeros(TINY)
    with open_batches(CAPTURE.scene(), 42, 14) as reader:
        batch = reader.read(0, 2)
    for poses in Poses:
        settings = ReconstructSettings(poses=poses)
        depths = [
            NetworkPredictor(network=tested, device=CPU, settings=settings).predict(given).predictions.depth
            for tested, given in ((network, batch), (network, replace(batch, cameras=None)), (plain, batch))
        ]
        assert torch.equal(depths[0], depths[1]) == (poses is Poses.PREDICTED)
        assert depths[2].isfinite().all()


def test_cameras_and_depth_of_networks_with_matches_are_refined_unless_switched_off():
    matching, plain = without_zeros(replace(TINY, matches=MatchConfig(dim=8, hidden=8))), without_zeros(TINY)
    with open_batches(CAPTURE.scene(), 42, 14) as reader:
        batch = replace(reader.read(0, 2), cameras=None)
    for network, differs in ((matching, True), (plain, False)):
        settings = [ReconstructSettings(refine=refine) for refine in (True, False)]
        refined, raw = (
            NetworkPredictor(network=network, device=CPU, settings=each).predict(batch).predictions
            for each in settings
        )
        # Held-out pixels support no cameras of an untrained network: those of its refinement are its own.
        assert torch.equal(refined.depth, raw.depth) != differs
        assert refined.depth.isfinite().all()
        assert torch.equal(refined.cameras.centers, raw.cameras.centers)


def test_networks_with_time_encoding_depend_on_time_differences_only():
    network = without_zeros(replace(TINY, time_encoding=TimeEncoding.ALIBI))
    with open_batches(CAPTURE.scene(), 42, 14) as reader:
        batch = reader.read(0, 4)
    gap = replace(batch, times=batch.times + torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=batch.times.dtype))
    predictor = NetworkPredictor(network=network, device=CPU)
    even, later, uneven = (
        predictor.predict(given).predictions.depth for given in (batch, replace(batch, times=batch.times + 60), gap)
    )
    torch.testing.assert_close(even, later, rtol=0, atol=1e-5)
    assert (even - uneven).abs().max() > 1e-4


def test_times_are_converted_to_frame_intervals():
    assert times_in_frames(torch.tensor([5.0])).tolist() == [0]
    counted = times_in_frames(torch.tensor([3.0, 3.04, 3.08, 3.16], dtype=torch.float64))
    torch.testing.assert_close(counted, torch.tensor([0.0, 1, 2, 4], dtype=torch.float64))


def test_descriptors_serve_the_refinement_under_known_cameras_and_a_run_does_not_mix_them(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    network = without_zeros(replace(TINY, matches=MatchConfig(dim=8, hidden=8)))
    settings = replace(SETTINGS, poses=Poses.INPUT, fuse=False)
    scene, out = CAPTURE.scene(), tmp_path / "stopped"
    plain = NetworkPredictor(network=network, device=CPU).with_settings(settings)
    with pytest.raises(InterruptedRunError):
        reconstruct(scene, plain, out=out, settings=settings, observer=StopAt(1))
    (path,) = DESCRIPTOR_MODEL.paths
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(XFeat().net.state_dict(), path)
    found = plain.with_settings(settings)
    assert (plain.descriptors, found.descriptors) == (None, dense_descriptors(CPU))
    for unused in (replace(settings, refine=False), replace(settings, poses=Poses.PREDICTED)):
        assert found.with_settings(unused).descriptors is None
    refinement = Mock(side_effect=UsageError("refined", "by the test"))
    monkeypatch.setattr("page4d.run.predictor.refinement_of", refinement)
    with open_batches(scene, 42, 14) as reader, pytest.raises(UsageError, match="refined"):
        found.predict(reader.read(0, 2))
    assert refinement.call_args.args[-2:] == (found.descriptors, None)
    uncalibrated = replace(scene, calibration=None, views=[replace(view, camera=None) for view in scene.views])
    alone = replace(scene, views=scene.views[:1])
    cases = ((scene, found), (scene, plain), (uncalibrated, found), (alone, found))
    plans = [plan_run(*case) for case in cases]
    assert [plan.descriptors for plan in plans] == [*DESCRIPTOR_MODEL.sha256.values(), None, None, None]
    assert plans[0].forecast.peak_bytes(3) > plans[1].forecast.peak_bytes(3)
    with pytest.raises(UsageError, match=r"differs: descriptors\)"):
        reconstruct(scene, found, out=out, settings=settings, existing=ExistingOutput.RESUME)


@pytest.mark.parametrize(
    ("num_times", "poses", "changes", "length"),
    [
        (9, Poses.INPUT, {}, 6),  # chunks of 5 instants
        (9, Poses.PREDICTED, {}, 6),  # chunks of 5 and 6 instants
        (80, Poses.INPUT, {}, 8),
        (7, Poses.INPUT, {"chunk": 3}, 3),
        (9, Poses.INPUT, {"overlap": 1}, 6),  # as by default
        (80, Poses.INPUT, {"overlap": 5}, 10),  # as chunks, which are those of other cameras
        (80, Poses.INPUT, {"fuse": False}, 0),
        (7, Poses.INPUT, {}, 0),
    ],
)
def test_the_background_of_known_cameras_is_predicted_from_as_many_instants_as_of_others(
    num_times: int, poses: Poses, changes: dict[str, Any], length: int
):
    settings = ReconstructSettings(poses=poses, **changes)
    predictor = NetworkPredictor(network=without_zeros(TINY), device=CPU, settings=settings)
    assert plan_run(replace(CAPTURE, num_times=num_times).scene(), predictor).background_length == length


@pytest.mark.parametrize(
    ("settings", "others"),
    [(SETTINGS, None), (SETTINGS, UNKNOWN_MOTION), (replace(SETTINGS, poses=Poses.INPUT, chunk=8), 0.0)],
)
def test_moving_parts_keep_the_depth_of_a_network_without_masks(
    settings: ReconstructSettings, others: float | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """In several chunks with its cameras, and in one with the calibrated ones.

    Without any masks, with those of the first view alone, and if those of the others, of another network, miss all.
    """
    capture = SyntheticCapture(seed=3, num_views=3, num_times=7, image_size=(56, 70), spacing_deg=20)

    def masked(_: int, predictions: Predictions) -> Predictions:
        if others is None:
            return replace(predictions, dynamic=None)
        dynamic = predictions.dynamic.clone()
        dynamic[:, :, 1:] = others
        return replace(predictions, dynamic=dynamic)

    truth = TruthPredictor(capture, masked)
    monkeypatch.setattr(NetworkPredictor, "predict", lambda _, batch, __=None: truth.predict(batch))
    network = without_zeros(replace(TINY, mask=None))
    reconstruct(capture.scene(), NetworkPredictor(network=network, device=CPU), out=tmp_path, settings=settings)
    output, exact = open_output(tmp_path), exact_predictions(capture)
    background = exact.depth[0].amax(dim=0)
    errors = []
    for time in range(7):
        for view, name in enumerate(output.view_names):
            true = exact.depth[0, time, view]
            moving = (exact.dynamic[0, time, view] > 0.5) & (true < 0.8 * background[view])
            errors.append((torch.from_numpy(output.depth(time, name)).log() - true.log()).abs()[moving])
    error = torch.cat(errors)
    assert len(error) > 500
    assert float((error > 0.1).float().mean()) < 0.1


def test_a_network_without_masks_takes_those_of_the_bundled_one(tmp_path: Path):
    """Larger pictures of two sizes; masks from files are kept, and one instant has no motion."""
    capture = SyntheticCapture(seed=1, num_views=3, num_times=6, image_size=(120, 160), spacing_deg=20)
    file = tmp_path / "network.safetensors"
    save_network(without_zeros(replace(TINY, mask=None)), file, {"licence": "none", "description": "a test"})
    predictor = build_predictor(file, device="cpu", settings=replace(SETTINGS, refine=False))
    assert predictor.record.motion_masks == build_predictor(device="cpu").record.name
    assert build_predictor(device="cpu").motion is None
    scene = capture.scene()
    sizes = [(120, 160), (120, 160), (90, 120)]
    transforms = tuple(fit_views([(120, 160)], round(1.6 * width), 14)[0] for _, width in sizes)
    with open_placed_batches(scene, transforms) as reader:
        batch = reader.read(0, 6)
    found = predictor.predict(batch).predictions.dynamic
    assert found is not None
    exact = exact_predictions(capture).dynamic
    for view, transform in enumerate(transforms):
        content = found[0, :, view, transform.rows, transform.columns] > 0.5
        true = functional.interpolate(exact[0, :, view, None], transform.content_size)[:, 0] > 0.5
        assert float((content & true).sum() / (content | true).sum()) > 0.65
        height, width = transform.canvas_size
        assert not found[:, :, view, height:].any()
        assert not found[:, :, view, :, width:].any()
    given = torch.rand_like(found)
    assert torch.equal(predictor.predict(replace(batch, dynamic=given)).predictions.dynamic, given)
    given[:, :, 1] = UNKNOWN_MOTION
    filled = predictor.predict(replace(batch, dynamic=given)).predictions.dynamic
    given[:, :, 1] = found[:, :, 1]
    assert torch.equal(filled, given)
    assert not predictor.predict(at_instants(batch, [2])).predictions.dynamic.any()


def test_given_masks_are_those_of_the_result_and_leave_the_predicted_ones_of_other_views():
    capture = SyntheticCapture(seed=1, num_views=3, num_times=6, image_size=(96, 128), spacing_deg=20)
    predictor = build_predictor(device="cpu", settings=replace(SETTINGS, refine=False))
    with open_batches(capture.scene(), 128, predictor.multiple) as reader:
        batch = reader.read(0, 6)
    given = exact_predictions(capture).dynamic.float()
    of_all = predictor.predict(replace(batch, dynamic=given)).predictions.dynamic
    assert torch.equal(of_all, given)
    given[:, :, 1:] = UNKNOWN_MOTION
    of_one = predictor.predict(replace(batch, dynamic=given)).predictions.dynamic
    assert torch.equal(of_one[:, :, :1], given[:, :, :1])
    assert torch.equal(of_one[:, :, 1:], predictor.predict(batch).predictions.dynamic[:, :, 1:])


@pytest.mark.parametrize("mask", [TINY.mask, None])
@pytest.mark.parametrize(("masked", "meaning"), [(0, "dynamic"), (1, "dynamic"), (2, "dynamic"), (2, "ignore")])
def test_masks_of_another_network_are_recorded_and_not_trusted(
    masked: int, meaning: str, mask: MaskConfig | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Unless the network has its own or all are given, static pixels must agree with the background, too."""
    scene = CAPTURE.scene()
    views = [
        replace(view, mask=None if place >= masked else PairedFrames(frames=view.source, indices=view.indices))
        for place, view in enumerate(scene.views)
    ]
    scene = replace(scene, views=tuple(views), mask_meaning=MaskMeaning(meaning))
    record = NetworkRecord(name="a", trained=True, motion_masks="another")
    predictor = NetworkPredictor(network=without_zeros(replace(TINY, mask=mask)), device=CPU, record=record)
    are_given = masked == len(views) and meaning == "dynamic"
    plan = plan_run(scene, predictor)
    assert plan.network.motion_masks == (None if are_given else "another")
    assert plan_run(with_instants(scene, [0]), predictor).network.motion_masks is None
    trusted = []

    def fuse(background: Background, cameras: Cameras, *, trusts_masks: bool) -> FusedBackground:
        trusted.append(trusts_masks)
        return fuse_background(background, cameras, trusts_masks=trusts_masks)

    monkeypatch.setattr("page4d.run.stages.clean.fuse_background", fuse)
    truth = TruthPredictor(CAPTURE)
    monkeypatch.setattr(NetworkPredictor, "predict", lambda _, batch, __=None: truth.predict(batch))
    reconstruct(scene, predictor, out=tmp_path, settings=replace(SETTINGS, poses=Poses.INPUT, long_side=42))
    assert trusted == [mask is not None or are_given]


def test_the_background_of_one_calibrated_camera_has_the_unit_of_what_moves(monkeypatch, tmp_path: Path):
    """Each prediction has a unit of its own, and one camera has no baseline that determines it."""
    capture = SyntheticCapture(seed=3, num_views=1, num_times=7, image_size=(56, 70))
    units = iter(range(9))
    truth = TruthPredictor(capture, lambda _, predictions: predictions.transformed(random_similarity(next(units))))
    monkeypatch.setattr(NetworkPredictor, "predict", lambda _, batch, __=None: truth.predict(batch))
    predictor = NetworkPredictor(network=without_zeros(TINY), device=CPU)
    reconstruct(capture.scene(), predictor, out=tmp_path, settings=replace(SETTINGS, poses=Poses.INPUT, chunk=4))
    assert len(truth.calls) == 3  # the background, and two chunks
    output, exact = open_output(tmp_path), exact_predictions(capture)
    moving = exact.dynamic[0, :, 0] > 0.5
    ratio = torch.stack([torch.from_numpy(output.depth(time, "cam01")) for time in range(7)]) / exact.depth[0, :, 0]
    assert int(moving.sum()) > 150
    assert float(ratio[moving].median()) == pytest.approx(float(ratio[~moving].median()), rel=0.01)


def test_pixels_that_show_the_background_are_not_refined(tmp_path, monkeypatch):
    """Where a background is known, in all chunks after it; masks leave a corner open, the right edge has none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    network = deepcopy(without_zeros(replace(TINY, matches=MatchConfig(dim=8, hidden=8))))
    torch.nn.init.constant_(network.get_parameter("aggregator.dynamic.head.mask_head.4.bias"), -9.0)  # all is static
    predictor = NetworkPredictor(network=network, device=CPU)
    size = (CAPTURE.num_views, *CAPTURE.image_size)
    plain = torch.full(size, 0.5)
    known = torch.ones(size, dtype=torch.bool)
    known[..., -1] = False
    background = Background(
        log_depth=plain, spread=plain, confidence=plain, color=plain[:, None], color_std=plain, known=known
    )
    given: list[list[StaticDepth] | None] = []

    def refinement(network, output, images, conditioning, descriptors, static):
        given.append(static)
        return refinement_of(network, output, images, conditioning, descriptors, static)

    monkeypatch.setattr("page4d.run.predictor.refinement_of", refinement)
    moving = torch.zeros(1, 2, *size)
    moving[..., :5, :6] = 1
    with open_batches(CAPTURE.scene(), 42, 14) as reader:
        batch = reader.read(0, 2)
    gray = replace(batch, images=torch.full_like(batch.images, 0.5), dynamic=moving)
    without_motion = without_zeros(replace(TINY, matches=MatchConfig(dim=8, hidden=8), mask=None))
    replace(predictor, network=without_motion, background=background).predict(gray)
    for depth, is_open in given.pop() or ():
        assert is_open[..., :5, :6].all()
        assert is_open[..., -1].all()
        assert not is_open[..., 5:, :-1].any()
        torch.testing.assert_close(depth, ~is_open * torch.tensor(0.5).exp())
    settings = replace(SETTINGS, poses=Poses.INPUT, depth_size=DepthSize.NETWORK)
    reconstruct(CAPTURE.scene(), predictor.with_settings(settings), out=tmp_path / "out", settings=settings)
    assert [static is None for static in given] == [True, False, False, False]


def test_short_captures_of_known_static_cameras_are_predicted_in_passes_over_every_second_instant(tmp_path):
    """The first pass is that of these instants alone; the second one has its background."""
    network = deepcopy(without_zeros(replace(TINY, matches=MatchConfig(dim=8, hidden=8))))
    torch.nn.init.constant_(network.get_parameter("aggregator.dynamic.head.mask_head.4.bias"), -9.0)  # all is static
    settings = replace(SETTINGS, chunk=None, overlap=None, poses=Poses.INPUT, depth_size=DepthSize.NETWORK)
    predictor = NetworkPredictor(network=network, device=CPU, settings=settings)
    scene = replace(CAPTURE, num_times=9).scene()
    with open_batches(scene, 42, 14) as reader:
        batch = reader.read(0, 9)
    found = replace(predictor, pass_length=8).predict(batch)
    first = predictor.predict(at_instants(batch, range(0, 9, 2)))
    assert found.rig_scale == 1
    torch.testing.assert_close(found.predictions.times, batch.times)
    torch.testing.assert_close(found.predictions.depth[:, ::2], first.predictions.depth * first.rig_scale)
    assert found.background is not None
    assert found.background.known.all()
    second = found.predictions.depth[0, 1::2]
    torch.testing.assert_close(second, found.background.log_depth.exp().expand_as(second))
    record = reconstruct(scene, predictor, out=tmp_path / "out", settings=settings)
    assert [(chunk.start, chunk.stop) for chunk in record.chunks] == [(0, 9)]
    plan = plan_run(scene, predictor)
    passes = (plan.pass_length, None)
    worker = _ChunkWorker(plan.scene, plan.transforms, settings.preprocess, lambda _: predictor, Mock(), passes)
    of_cluster = worker.predict(plan.chunks[0], None)
    assert isinstance(of_cluster, PredictedChunk)
    assert of_cluster.background is not None  # the first pass gave it
    at_one_place = replace(scene, views=(scene.views[0], *(replace(scene.views[0], name=name) for name in "bc")))
    assert plan.pass_length == 8
    assert plan_run(at_one_place, predictor).pass_length is None


def test_a_run_that_is_resumed_with_less_memory_has_the_same_passes(tmp_path, monkeypatch) -> None:
    network = without_zeros(replace(TINY, matches=MatchConfig(dim=8, hidden=8)))
    settings = replace(SETTINGS, chunk=None, overlap=None, poses=Poses.INPUT, depth_size=DepthSize.NETWORK)
    predictor = NetworkPredictor(network=network, device=CPU, settings=settings)
    scene = replace(CAPTURE, num_times=9).scene()
    lengths, run = [], NetworkPredictor.run

    def counted(self: NetworkPredictor, batch: FrameBatch, memory: Memory | None = None) -> RigOutput:
        lengths.append(len(batch.times))
        return run(self, batch, memory)

    def interrupt(*_: object) -> None:
        raise InterruptedRunError("interrupted")

    monkeypatch.setattr(NetworkPredictor, "run", counted)
    reconstruct(scene, predictor, out=tmp_path / "whole", settings=settings)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_write_chunk", interrupt)
        with pytest.raises(InterruptedRunError):
            reconstruct(scene, predictor, out=tmp_path / "cut", settings=settings)
    monkeypatch.setattr("page4d.run.plan.usable_bytes", Mock(return_value=10**8))
    assert len(plan_run(scene, predictor).chunks) > 1
    reconstruct(scene, predictor, out=tmp_path / "cut", settings=settings, existing=ExistingOutput.RESUME)
    assert lengths == [5, 4] * 3
    assert bytes_of(tmp_path / "whole") == bytes_of(tmp_path / "cut")


@pytest.mark.parametrize(
    ("poses", "num_times", "interrupted_at", "size"),
    [(Poses.INPUT, 9, 1, DepthSize.VIDEO), (Poses.PREDICTED, 5, 2, DepthSize.NETWORK)],
)
def test_a_run_whose_only_chunk_is_halved_has_the_same_bytes_if_it_is_resumed(
    poses: Poses,
    num_times: int,
    interrupted_at: int,
    size: DepthSize,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Interrupted before and after its first chunk; the background is of instants of the whole capture."""
    network = without_zeros(replace(TINY, matches=MatchConfig(dim=8, hidden=8)))
    refine = poses is Poses.INPUT
    settings = replace(SETTINGS, chunk=None, overlap=None, poses=poses, depth_size=size, refine=refine)
    settings = replace(settings, camera_motion=CameraMotion.STATIC)
    predictor = NetworkPredictor(network=network, device=CPU, settings=settings)
    scene = replace(CAPTURE, num_times=num_times).scene()
    run, write, written = NetworkPredictor.run, Run._write_chunk, list[Path]()

    def limited(self: NetworkPredictor, batch: FrameBatch, memory: Memory | None = None) -> RigOutput:
        if len(batch.times) > 4:
            raise MemoryError
        return run(self, batch, memory)

    def interrupting(self: Run, *arguments: Any) -> None:
        written.append(self.layout.folder)
        if written.count(tmp_path / "cut") == interrupted_at:
            raise InterruptedRunError("interrupted")
        write(self, *arguments)

    monkeypatch.setattr(NetworkPredictor, "run", limited)
    monkeypatch.setattr(Run, "_write_chunk", interrupting)
    record = reconstruct(scene, predictor, out=tmp_path / "whole", settings=settings)
    assert len(record.chunks) > 1
    assert (tmp_path / "whole" / "state" / "background.safetensors").is_file()
    with pytest.raises(InterruptedRunError):
        reconstruct(scene, predictor, out=tmp_path / "cut", settings=settings)
    reconstruct(scene, predictor, out=tmp_path / "cut", settings=settings, existing=ExistingOutput.RESUME)
    assert bytes_of(tmp_path / "cut") == bytes_of(tmp_path / "whole")
