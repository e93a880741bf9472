"""Predictors: a network, or measured depth, as the source of a run's predictions.

Batches of frames become inputs of a network, and its outputs predictions.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from page4d.choices import Poses, Preprocess
from page4d.conventions import IMAGE_MEAN, Scale
from page4d.errors import ON_STDERR, InputError, Observer, UsageError, listed, unknown_name
from page4d.geometry.camera import Cameras
from page4d.geometry.pixels import PixelTransform, Size, fit_views
from page4d.geometry.time_axis import at_instants, join_times, to_device
from page4d.geometry.transforms import Sim3
from page4d.networks.conditioning import Conditioning, Memory, parts_for_one_size
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.ood import OODLimits, measure_ood
from page4d.networks.output import NetworkOutput, RigOutput, has_both, is_sky
from page4d.networks.preprocess import place_views
from page4d.networks.presets import PRESETS
from page4d.options import NetworkOptions, ReconstructSettings, given_settings, in_options
from page4d.output.record import NetworkRecord
from page4d.records import Predictions
from page4d.scene.batches import FrameBatch, is_unknown
from page4d.scene.records import Scene
from page4d.stereo.background import Background, estimate_background, shows_background
from page4d.stereo.descriptors import DenseDescriptors, dense_descriptors
from page4d.stereo.refine import refinement_of
from page4d.stereo.state import StaticDepth
from page4d.weights.loading import BUNDLED_NAME, BUNDLED_NOTICE, choose_device, choose_precision, load
from page4d.weights.names import BUNDLED_FILE
from page4d.weights.resolve import find_weights

CAMERAS_HINT = "pass ⟨calibration⟩, register the rig with ⟨register⟩, or use a network that predicts cameras"


def views_of(maps: Float[Tensor, "B T V *C H W"], batch: FrameBatch) -> list[Tensor]:
    """Cut every view's canvas out of the common one."""
    sizes: Sequence[tuple[int, int]] = [transform.canvas_size for transform in batch.pixel_transforms]
    return [maps[:, :, view, ..., :height, :width] for view, (height, width) in enumerate(sizes)]


def times_in_frames(times: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    """Convert times in seconds to frames since the first, in units of the median frame interval."""
    if len(times) < 2:
        return torch.zeros_like(times)
    return (times - times[0]) / times.diff().median()


def predictions_of(batch: FrameBatch, output: NetworkOutput, scale: Scale) -> Predictions:
    """Convert a network's output to predictions in page4d's conventions, in float32 on the CPU.

    A network without a camera head has the calibrated cameras, one without a depth confidence has confidence 1.
    The sky, where it is predicted, has no depth, unless almost everything is sky.
    """
    if output.depth is None:
        raise UsageError("this network predicts no depth", "use weights of a network with a depth head")
    depth_confidence = torch.ones_like(batch.valid, dtype=torch.float32)
    if output.depth_confidence is not None:
        # From 1 + exp(x) to sigmoid(x) in [0, 1), so that thresholds are comparable between networks.
        depth_confidence = 1 - 1 / _to_host(output.depth_confidence)
    valid = batch.valid
    if output.sky is not None:
        in_sky = is_sky(_to_host(output.sky))
        valid = valid & ~in_sky if has_both(in_sky[valid]) else valid
    return Predictions(
        times=batch.times,
        view_names=batch.view_names,
        scale=scale,
        pixel_transforms=batch.pixel_transforms,
        cameras=_cameras(batch, output),
        images=batch.images,
        valid=valid,
        depth=_to_host(output.depth),
        depth_confidence=depth_confidence,
        dynamic=motion_of(batch, output),
        faults=batch.faults,
    )


def motion_of(batch: FrameBatch, output: NetworkOutput) -> Float[Tensor, "B T V H W"] | None:
    """Return the given masks of motion, and the predicted ones of views without; of one instant these are 0."""
    if output.dynamic is None:
        return batch.dynamic
    predicted = _to_host(output.dynamic)
    if len(batch.times) == 1:
        predicted = torch.zeros_like(predicted)
    return (
        predicted if batch.dynamic is None else torch.where(batch.unmasked[:, None, None], predicted, batch.dynamic)
    )


def _cameras(batch: FrameBatch, output: NetworkOutput) -> Cameras:
    """Return the predicted cameras in float64, or the calibrated ones if the network predicts none."""
    if output.world_to_camera is None or output.intrinsics is None:
        if batch.cameras is None:
            raise UsageError("this network predicts no cameras", CAMERAS_HINT)
        return batch.cameras
    return Cameras(
        world_to_camera=output.world_to_camera.detach().to("cpu", torch.float64),
        intrinsics=output.intrinsics.detach().to("cpu", torch.float64),
        image_size=(batch.images.shape[-2], batch.images.shape[-1]),
    )


def _to_host(values: Tensor) -> Tensor:
    return values.detach().to("cpu", torch.float32).clone()


PRECISION_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
"""Names of precisions in options and in `run.json`."""


CPU = torch.device("cpu")


class PredictedChunk(NamedTuple):
    """Predictions for the frames of a chunk.

    `rig` are the calibrated cameras of its frames, `memory` is an input of the network for the next chunk, and `ood`
    holds the out-of-distribution indicators in units of their thresholds, None without any. `rig_scale` is the unit
    of refined depth in that of `rig`, None if depth was not fitted to it. `kept` are the parts of cameras whose
    refinement held-out evidence supports, None without such a comparison. Refinement took `refine_seconds`.
    `background` is that of the first of several passes, in the unit of `rig`.
    """

    predictions: Predictions
    rig: Cameras | None = None
    memory: Memory | None = None
    ood: Mapping[str, float] | None = None
    rig_scale: float | None = None
    kept: tuple[str, ...] | None = None
    refine_seconds: float = 0.0
    background: Background | None = None


@dataclass(frozen=True, kw_only=True)
class NetworkPredictor:
    """Runs a network without its ray map and refines its output.

    The trunk may run at lower `precision`; heads, poses and geometry stay in float32. `ood_limits` are the thresholds
    of its out-of-distribution indicators, `descriptors` compare views in the refinement. `motion` predicts the masks
    of motion of a network without any. Under calibrated cameras, pixels that show a known `background` are not
    refined. Chunks longer than `pass_length` are predicted in several passes, which needs calibrated static cameras.
    """

    network: ViewTimeNetwork
    device: torch.device
    precision: torch.dtype = torch.float32
    settings: ReconstructSettings = field(default_factory=ReconstructSettings)
    record: NetworkRecord = field(default_factory=lambda: NetworkRecord(name="page4d-mv", trained=False))
    ood_limits: OODLimits | None = None
    descriptors: DenseDescriptors | None = None
    motion: "NetworkPredictor | None" = None
    background: Background | None = None
    pass_length: int | None = None

    @property
    def has_mask_head(self) -> bool:
        """Whether the network predicts masks of motion."""
        return self.network.config.mask is not None

    @property
    def multiple(self) -> int:
        """Divisor of image sides: the patch size in pixels."""
        return self.network.config.patch_size

    @property
    def default_long_side(self) -> int | None:
        """That of the configuration, by default the image size of the encoder's position table."""
        config = self.network.config
        return config.default_long_side or config.encoder.image_size

    @property
    def takes_mixed_sizes(self) -> bool:
        """Whether views may differ in size; otherwise all are placed on one canvas."""
        return not parts_for_one_size(self.network.config)

    @property
    def uses_rig_cameras(self) -> bool:
        """Whether predictions have the calibrated cameras, in their world."""
        return not self.network.config.predicts_cameras

    @property
    def scale(self) -> Scale:
        """Unit of length of predictions: metric if the network predicts metres."""
        return Scale.METRIC if self.network.config.predicts_metres else Scale.ARBITRARY

    def with_settings(self, settings: ReconstructSettings) -> "NetworkPredictor":
        """Return the predictor under other settings, with descriptors if they serve and were fetched."""
        serve = settings.refine and self.network.config.matches is not None and settings.poses is Poses.INPUT
        return replace(self, settings=settings, descriptors=dense_descriptors(self.device) if serve else None)

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> PredictedChunk:
        """Predict cameras, depth, confidence and motion at network pixels."""
        if self.pass_length is not None and len(batch.times) > self.pass_length:
            return self._predict_passes(batch, -(-len(batch.times) // self.pass_length))
        batch = self._with_masks(batch)
        output = self.run(batch, memory)
        ood = None if self.ood_limits is None else self.ood_limits.ratios(measure_ood(output))
        rig_scale, kept, refine_seconds = None, None, 0.0
        if self.settings.refine:
            begin = time.perf_counter()
            images, conditioning = self._images(batch), self._conditioning(batch, None)
            static = self._static_depth(batch, output)
            refined = refinement_of(self.network, output, images, conditioning, self.descriptors, static)
            output, kept = refined.output, None if refined.kept is None else refined.kept.names
            rig_scale = None if refined.rig_scale is None else float(refined.rig_scale[0])
            refine_seconds = time.perf_counter() - begin
        memory = output.memory and {name: tokens.detach().to("cpu") for name, tokens in output.memory.items()}
        on_canvas = output.on_canvas((batch.images.shape[-2], batch.images.shape[-1]))
        predictions = predictions_of(batch, on_canvas, self.scale)
        return PredictedChunk(predictions, batch.cameras, memory, ood, rig_scale, kept, refine_seconds)

    def _predict_passes(self, batch: FrameBatch, step: int) -> PredictedChunk:
        """Predict every `step`-th instant together, in the unit of the known cameras; all if none is determined.

        The first pass gives the background if none is known, and the others refine what does not show it. Instants in
        a row show less motion: moving parts of `tabletop`, 12 instants, have an AbsRel of 0.069 in two passes, 0.073
        in one pass.
        """
        instants = [list(range(first, len(batch.times), step)) for first in range(step)]
        parts, background = list[PredictedChunk](), self.background
        for chosen in instants:
            predictor = replace(self, pass_length=None, background=background)
            part = predictor.predict(at_instants(batch, chosen))
            if part.rig is None or part.rig_scale is None:
                return replace(self, pass_length=None).predict(batch)
            first = part.predictions.cameras.world_to_camera[0, 0, 0]
            placed = part.predictions.transformed(Sim3.into_camera(first, first.new_tensor(part.rig_scale)))
            if background is None and placed.dynamic is not None:
                background = estimate_background(placed, range(len(placed.view_names)))
            parts.append(part._replace(predictions=placed))
        order = np.argsort(np.concatenate(instants)).tolist()
        ratios = [part.ood for part in parts if part.ood is not None]
        return PredictedChunk(
            at_instants(join_times([part.predictions for part in parts]), order),
            rig=batch.cameras,
            ood={name: max(ratio[name] for ratio in ratios) for name in ratios[0]} if ratios else None,
            rig_scale=1.0,
            refine_seconds=sum(part.refine_seconds for part in parts),
            background=background,
        )

    def run(self, batch: FrameBatch, memory: Memory | None = None) -> RigOutput:
        """Return the network's output without refinement, on its device.

        Given masks of all views are an input of a network with a mask head. Those of some views are not: it would
        predict coarser ones for the others.
        """
        masks = None
        if batch.dynamic is not None and self.has_mask_head and not bool(batch.unmasked.any()):
            masks = views_of(batch.dynamic.to(self.device), batch)
        images, conditioning = self._images(batch), self._conditioning(batch, memory)
        reduced = self.precision is not torch.float32
        with torch.inference_mode(), torch.autocast(self.device.type, dtype=self.precision, enabled=reduced):
            output: RigOutput = self.network(images, masks, conditioning=conditioning)
        return output

    def _with_masks(self, batch: FrameBatch) -> FrameBatch:
        """Return a batch with masks of motion in the views without given ones, if another network predicts them."""
        if self.motion is None or not bool(batch.unmasked.any()):
            return batch
        masks = self.motion.motion_masks(batch)
        if batch.dynamic is not None:
            masks = torch.where(batch.unmasked[:, None, None], masks, batch.dynamic)
        return replace(batch, dynamic=masks)

    def motion_masks(self, batch: FrameBatch) -> Float[Tensor, "B T V H W"]:
        """Return the probability that pixels of a batch for another network move, in [0, 1]; 0 of one instant.

        The images are resized to this network's size, or to their own where that is smaller. Forecasts of memory
        leave it out, as other networks need more, but for images below about 150 px.
        """
        if len(batch.times) == 1:
            return torch.zeros_like(batch.valid, dtype=torch.float32)
        views = views_of(batch.images, batch)
        sizes = [transform.canvas_size for transform in batch.pixel_transforms]
        side = min(self.default_long_side or max(map(max, sizes)), max(map(max, sizes)))
        transforms = fit_views(sizes, side, self.multiple)
        images = batch.images.new_tensor(IMAGE_MEAN)[:, None, None].expand(3, *transforms[0].canvas_size)
        images = images.repeat(*batch.images.shape[:3], 1, 1, 1)
        resized = partial(functional.interpolate, mode="bilinear", align_corners=False)
        for view, (image, place) in enumerate(zip(views, transforms, strict=True)):
            content = resized(image[0], place.content_size, antialias=True)
            images[0, :, view, :, place.rows, place.columns] = content
        placed = replace(batch, images=images, pixel_transforms=transforms, dynamic=None, cameras=None, depth=None)
        dynamic = self.run(placed).on_canvas(transforms[0].canvas_size).dynamic
        assert dynamic is not None
        found = torch.zeros_like(batch.valid, dtype=torch.float32)
        for view, (place, (height, width)) in enumerate(zip(transforms, sizes, strict=True)):
            content = dynamic[0, :, view, place.rows, place.columns]
            found[0, :, view, :height, :width] = resized(_to_host(content)[:, None], (height, width))[:, 0]
        return found

    def _static_depth(self, batch: FrameBatch, output: RigOutput) -> list[StaticDepth] | None:
        """Return the depth of the pixels that show the background, by motion and color.

        None without a background, or without masks of all views.
        """
        dynamic = motion_of(batch, output.on_canvas((batch.images.shape[-2], batch.images.shape[-1])))
        if self.background is None or dynamic is None or bool(is_unknown(dynamic[0].transpose(0, 1)).any()):
            return None
        background = to_device(self.background, self.device)
        images = batch.images[0].to(self.device)
        _, is_static = shows_background(dynamic[0].to(images), images, background)
        depth = torch.where(is_static, background.log_depth.exp(), 0.0)
        is_open = batch.valid[0].to(self.device) & ~is_static
        return [
            StaticDepth(*pair)
            for pair in zip(views_of(depth[None], batch), views_of(is_open[None], batch), strict=True)
        ]

    def _images(self, batch: FrameBatch) -> list[Float[Tensor, "B T 3 _ _"]]:
        return views_of(batch.images.to(self.device), batch)

    def _conditioning(self, batch: FrameBatch, memory: Memory | None) -> Conditioning:
        cameras = batch.cameras if self.settings.poses is Poses.INPUT else None
        depth = batch.depth if self.network.config.known_geometry is not None else None
        return Conditioning(
            depths=None if depth is None else views_of(depth.to(self.device), batch),
            known_depths=None if depth is None else (depth > 0).flatten(3).any(dim=3).to(self.device),
            times=times_in_frames(batch.times).to(self.device)[None],
            memory=memory and {name: tokens.to(self.device) for name, tokens in memory.items()},
            world_to_camera=None if cameras is None else cameras.world_to_camera.to(self.device),
            intrinsics=None if cameras is None else cameras.intrinsics.to(self.device),
        )


@dataclass(frozen=True)
class MeasuredDepth:
    """Depth of a sensor and cameras of a calibration, without a network."""

    scene: Scene
    settings: ReconstructSettings = field(default_factory=ReconstructSettings)
    record: NetworkRecord = field(default=NetworkRecord(name="measured depth, no network", trained=True))
    multiple: int = 1
    default_long_side: int | None = None
    takes_mixed_sizes: bool = False
    uses_rig_cameras: bool = True
    scale: Scale | None = None
    device: torch.device = CPU
    precision: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if all(view.camera is None for view in self.scene.views):
            raise UsageError("measured depth needs the cameras of all views", "pass ⟨calibration⟩")
        without = [view.name for view in self.scene.views if view.depth is None]
        if without:
            raise InputError(f"no measured depth for {listed(without)}", "leave them out with ⟨views⟩")

    def with_settings(self, settings: ReconstructSettings) -> "MeasuredDepth":
        """Return the predictor under other settings."""
        return replace(self, settings=settings)

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> PredictedChunk:  # noqa: ARG002  no memory
        """Return the measurements as predictions, with confidence 1 where the sensor has a reading."""
        assert batch.depth is not None
        assert batch.cameras is not None
        measured = Predictions(
            times=batch.times,
            view_names=batch.view_names,
            scale=self.scene.scale,
            pixel_transforms=batch.pixel_transforms,
            cameras=batch.cameras,
            images=batch.images,
            valid=batch.valid,
            depth=batch.depth,
            depth_confidence=(batch.valid & (batch.depth > 0)).to(torch.float32),
            dynamic=batch.dynamic,
            faults=batch.faults,
        )
        return PredictedChunk(measured, batch.cameras)


Predictor = NetworkPredictor | MeasuredDepth
"""Turns decoded frames into predictions, under the settings of a run."""


def prepared(predictor: Predictor, pass_length: int | None, background: Background | None) -> Predictor:
    """Return the predictor of a run: a network's has the passes of its chunks, and a background known before them."""
    if not isinstance(predictor, NetworkPredictor):
        return predictor
    return replace(predictor, pass_length=pass_length, background=background)


def is_conditioned(predictor: Predictor) -> bool:
    """Return whether calibrated cameras are an input of the predictor's network, where there are any."""
    if not isinstance(predictor, NetworkPredictor):
        return False
    config = predictor.network.config
    takes_cameras = config.known_cameras or config.known_geometry is not None
    return takes_cameras and predictor.settings.poses is Poses.INPUT


def network_transforms(predictor: Predictor, sizes: list[Size]) -> tuple[PixelTransform, ...]:
    """Return the placement of images, whose original (height, width) are given, at the predictor's pixels.

    Raises:
        UsageError: if the size that the user sets, or the preprocessing, does not suit the images.
    """
    settings = predictor.settings
    long_side = settings.long_side or predictor.default_long_side or max(max(size) for size in sizes)
    if settings.preprocess is Preprocess.NATIVE and predictor.takes_mixed_sizes:
        return tuple(fit_views([size], long_side, predictor.multiple)[0] for size in sizes)
    return place_views(settings.preprocess, sizes, long_side, predictor.multiple)


def build_predictor(
    weights: Path | str | None = None,
    *,
    device: str = "auto",
    precision: str = "auto",
    untrained: bool = False,
    preset: str = NetworkOptions.preset,
    settings: ReconstructSettings | None = None,
    sha256: str | None = None,
    observer: Observer | None = ON_STDERR,
) -> NetworkPredictor:
    """Build the predictor of a network under the settings of a run.

    Args:
        weights: file, name of a public checkpoint, or `hf:org/name[@revision][:file]`; None is the bundled network.
        device: auto, cpu, cuda or cuda:N.
        precision: of encoder and trunk: auto, fp32, bf16 or fp16.
        untrained: build a network of `preset` with random weights, of the settings' seed, instead.
        preset: name of a network configuration.
        settings: of the run; the defaults if None.
        sha256: SHA-256 that the file, or that of the hub, must have.
        observer: receives the licence and the progress of weights that are fetched; None is silent.

    Raises:
        UsageError: if the arguments contradict each other or name nothing that exists.
        WeightsError: if the weights cannot be used.
        CapabilityError: if the device does not exist.
    """
    options: dict[str, Any] = {"weights": weights, "untrained": untrained, "preset": preset, "sha256": sha256}
    options |= {"device": device, "precision": precision}
    return network_predictor(NetworkOptions(**options), given_settings(settings), observer)


def predictor_for(
    scene: Scene, options: NetworkOptions, settings: ReconstructSettings, observer: Observer | None = None
) -> Predictor:
    """Build the predictor of a scene: its measured depth if there is any, else a network.

    A network that takes depth is conditioned on the measured depth if weights are named, or an untrained one is.

    Raises:
        UsageError: if the options contradict each other.
        WeightsError: if the weights cannot be used.
        CapabilityError: if the device does not exist.
    """
    if all(view.depth is None for view in scene.views):
        return network_predictor(options, settings, observer)
    if options.weights is None and not options.untrained:
        return MeasuredDepth(scene, settings)
    predictor = network_predictor(options, settings, observer)
    if predictor.network.config.known_geometry is None:
        raise UsageError(
            "⟨depth⟩ with a network that takes no depth", "leave one of them out, or use a network that takes depth"
        )
    return predictor


@dataclass(frozen=True)
class _Request:
    """A network to load; equal requests may have different observers."""

    options: NetworkOptions
    seed: int
    observer: Observer | None = field(compare=False)


def network_predictor(
    options: NetworkOptions, settings: ReconstructSettings, observer: Observer | None = None
) -> NetworkPredictor:
    """Build the predictor of a network; the scenes of a batch share one network.

    Raises:
        UsageError: if no preset, device or precision has that name.
        WeightsError: if the weights cannot be used.
        CapabilityError: if the device does not exist.
    """
    seed = settings.seed if options.untrained else 0
    return _loaded(_Request(options, seed, observer)).with_settings(settings)


@lru_cache(maxsize=1)
def _loaded(request: _Request) -> NetworkPredictor:
    options, device = request.options, choose_device(request.options.device)
    if options.untrained:
        return _untrained(options, device, request.seed)
    return _trained(options, device, request.observer)


def _trained(options: NetworkOptions, device: torch.device, observer: Observer | None) -> NetworkPredictor:
    found = find_weights(options.weights, options.sha256, observer)
    is_bundled = found.path == BUNDLED_FILE
    network = load(found.path, device, options.precision, found.sha256, observer=None)
    limits = network.info.metadata.get("domain")
    network.predicts_ray_map = network.predicts_points = False  # predictions have neither
    motion = None
    if network.config.mask is None:
        motion = _trained(replace(options, weights=None, sha256=None), device, observer)
    return NetworkPredictor(
        network=network,
        device=device,
        precision=network.precision,
        motion=motion,
        record=NetworkRecord(
            name=BUNDLED_NAME if is_bundled else found.title or network.info.description,
            trained=True,
            config=json.loads(network.config.to_json()),
            weights=network.info.path.name,
            sha256=network.info.sha256,
            licence=network.info.licence,
            commercial=network.info.commercial if found.commercial is None else found.commercial,
            source=found.source,
            motion_masks=None if motion is None else motion.record.name,
            notice=in_options(BUNDLED_NOTICE) if is_bundled else "",
        ),
        ood_limits=None if limits is None else OODLimits.from_json(limits),
    )


def _untrained(options: NetworkOptions, device: torch.device, seed: int) -> NetworkPredictor:
    if options.preset not in PRESETS:
        raise unknown_name("network", options.preset, PRESETS)
    precision = choose_precision(options.precision, device)
    torch.manual_seed(seed)
    network = build_network(PRESETS[options.preset]).to(device).eval()
    record = NetworkRecord(
        name="page4d-mv", trained=False, preset=options.preset, config=json.loads(network.config.to_json())
    )
    network.predicts_ray_map = network.predicts_points = False  # predictions have neither
    return NetworkPredictor(network=network, device=device, precision=precision, record=record)
