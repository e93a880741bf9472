"""Times of the stages of a run: the rates that earlier runs measured on this machine, and the forecast from them.

Registration has a forecast of its own: upper bounds of the seconds and memory of its stages.
"""

import hashlib
import math
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from pydantic import PositiveFloat

from page4d.choices import Registration
from page4d.errors import OutputError
from page4d.io.folders import cache_folder
from page4d.io.json_records import FileModel, read_cached, write_model
from page4d.networks.presets import PRESETS
from page4d.options import ReconstructSettings
from page4d.rig.evidence import MAX_DENSE_VIEWS, MORE_INSTANTS
from page4d.rig.graph import choose_pairs
from page4d.rig.learned import MAX_INSTANTS as LEARNED_INSTANTS
from page4d.rig.learned import TEXTURE_MODEL
from page4d.rig.people.model import is_fetched
from page4d.rig.texture import MAX_INSTANTS, MAX_SIDE_PX
from page4d.rig.trajectory import METHOD
from page4d.run.memory import Extent, NetworkCost, cost_of
from page4d.run.plan import RunPlan, static_views
from page4d.run.predictor import PRECISION_NAMES, NetworkPredictor, Predictor
from page4d.run.scene_evidence import moves_as_one
from page4d.scene.records import Scene
from page4d.stereo.views import MAX_NEIGHBOURS

_DECODE_S = 1e-8
"""Seconds per pixel of a video; runs measure only how long they wait for frames."""

_MIN_MEASURED_S = 0.5
"""Rates of shorter stages are not kept: their overhead is too large a part."""

_KEYPOINT_S = 0.07
"""CPU seconds per frame: detection and landmarks of up to three people."""

_TEXTURE_S = 0.55
"""CPU seconds per frame and megapixel of SIFT, with decoding."""

_PAIR_S = 1.0
"""CPU seconds per pair from people, in each of up to two rounds."""

_TEXTURE_PAIR_S = 3.0
"""CPU seconds per pair from SIFT: estimation, and matches near its epipolar lines."""

_LEARNED_S = 2.0
"""CPU seconds per frame of learned features, and per pair and instant of their matches."""

_LEARNED_BYTES = 1.3e9

_FOLLOW_S = 0.1
"""CPU seconds per picture of a rig that moves as one, in addition to SIFT: matches, and adjustment."""

_KEYPOINT_BYTES = 150e6
_TEXTURE_BYTES = 300e6
"""Memory per megapixel of SIFT: its pyramid of scales in 32 bits, of a doubled image."""


_USUAL_SIZE = (392, 518)
"""Height and width of images in estimates of checkpoints."""

_TIMED = {"cpu": (1024, torch.float32), "cuda": (8192, torch.bfloat16)}
"""Sides and types of the matrices whose product is timed, several times."""

_TIMED_PRODUCTS = 5

_NETWORK_FACTOR = 1.5
"""Time of an operation of a network relative to that of a product: 17 and 11 CPU seconds per TFLOP of DA3-BASE on one
core; assumed on GPUs."""


def checkpoint_seconds(name: str, device: torch.device) -> float | None:
    """Estimate how long the network of a public checkpoint takes for an instant of four views; None if unknown.

    Its operations, those of a chunk of four instants, take `_NETWORK_FACTOR` times as long as those of a product of
    matrices, which is timed.
    """
    if name not in PRESETS:
        return None
    cost = NetworkCost(config=PRESETS[name], device=torch.device("cpu"))
    side, dtype = _TIMED[device.type]
    matrix = torch.ones(side, side, dtype=dtype, device=device)
    passed = min(cost_of(device, lambda: matrix @ matrix).seconds for _ in range(_TIMED_PRODUCTS))
    return (
        cost.tflop(Extent(times=4, views=4, size=_USUAL_SIZE)) / 4 * 1e12 * _NETWORK_FACTOR * passed / (2 * side**3)
    )


class RegistrationStage(NamedTuple):
    """A stage of registration: CPU seconds and peak memory in addition to what is in use."""

    name: str
    seconds: float
    num_bytes: float


def registration_stages(scene: Scene, settings: ReconstructSettings) -> tuple[RegistrationStage, ...]:
    """Return upper bounds for the stages; where people place all views, one kind of texture or none is extracted."""
    register, views, is_moving = settings.registration, scene.num_views, moves_as_one(scene, settings)
    side = METHOD.max_side_px if is_moving else MAX_SIDE_PX
    sizes = [np.prod(view.source.size) * min(1.0, side / max(view.source.size)) ** 2 / 1e6 for view in scene.views]
    if is_moving:
        seconds = scene.num_times * float(_FOLLOW_S * views + _TEXTURE_S * sum(sizes))
        return (RegistrationStage("motion", seconds, float(max(sizes)) * _TEXTURE_BYTES),)
    num_pairs = len(choose_pairs(np.ones((views, views))))
    stages = []
    if register.register is Registration.PEOPLE or (register.register is Registration.AUTO and is_fetched()):
        seconds = _KEYPOINT_S * register.max_instants * views
        stages.append(RegistrationStage("keypoints", seconds, _KEYPOINT_BYTES))
        stages.append(RegistrationStage("pairs", 2 * _PAIR_S * num_pairs, _KEYPOINT_BYTES))
    if register.register is not Registration.PEOPLE:
        instants = min(MAX_INSTANTS, scene.num_times)
        seconds = float(sum(sizes)) * instants * _TEXTURE_S + _TEXTURE_PAIR_S * num_pairs
        stages.append(RegistrationStage("texture", seconds, float(max(sizes)) * _TEXTURE_BYTES))
        if TEXTURE_MODEL.are_present:
            instants = min(MORE_INSTANTS if views <= MAX_DENSE_VIEWS else LEARNED_INSTANTS, scene.num_times)
            seconds = _LEARNED_S * instants * (views + num_pairs)
            stages.append(RegistrationStage("learned texture", seconds, _LEARNED_BYTES))
    return tuple(stages)


class StageRates(FileModel):
    """Seconds per unit of work, as earlier runs took; the defaults were measured on one core at 128x96 px.

    `network` are seconds per TFLOP, `detail` is a factor on its own forecast; `refine` and `clean` are seconds per
    pixel of the network and neighbouring view, `people` seconds per frame, `motion` seconds per pixel whose flow is
    measured, `write` seconds per pixel of a map, `preview` and `check` (of a calibration) seconds.
    """

    network: PositiveFloat = 13.0
    refine: PositiveFloat = 3e-6
    clean: PositiveFloat = 2e-6
    people: PositiveFloat = 0.05
    detail: PositiveFloat = 1.0
    motion: PositiveFloat = 1.2e-6
    write: PositiveFloat = 6e-7
    preview: PositiveFloat = 6.0
    check: PositiveFloat = 4.0


class MeasuredRates(FileModel):
    """The rates of a network on a machine, kept in the cache, with the date of the run that measured them last."""

    subject: dict[str, str]
    date: str
    rates: StageRates


@dataclass(frozen=True, kw_only=True)
class TimeForecast:
    """Expected seconds of the stages of a run, without registration, and of the whole run; `date` is of the rates.

    Stages overlap: while the network and refinement compute a chunk, the previous one is cleaned and written, and
    the frames of the next one are decoded.
    """

    seconds: Mapping[str, float]
    total: float
    date: str


def forecast_time(plan: RunPlan) -> TimeForecast | None:
    """Forecast the time of a run from the rates of earlier ones; None before a first run of its network."""
    found = _read(plan.predictor)
    if found is None:
        return None
    rates = found.rates
    lengths = [chunk.length for chunk in plan.chunks]
    once = [plan.background_length] if plan.background_length else []
    work, before = _work(plan, lengths), _work(plan, once)
    seconds = {name: _seconds(rates, name, work) for name in work}
    background = {name: _seconds(rates, name, before) for name in ("decode", "network", "refine")}
    predicted = seconds["network"] + seconds["refine"]
    written = seconds["people"] + seconds["clean"] + seconds["detail"] + seconds["motion"] + seconds["write"]
    overlaps = torch.get_num_threads() > 1 or plan.predictor.device.type == "cuda"
    both = max(predicted, written, seconds["decode"]) if overlaps else predicted + written + seconds["decode"]
    return TimeForecast(
        seconds={name: spent + background.get(name, 0.0) for name, spent in seconds.items()},
        total=both + sum(background.values()) + seconds["preview"] + seconds["check"],
        date=found.date,
    )


def record_rates(plan: RunPlan, seconds: Mapping[str, float]) -> None:
    """Keep the rates of a finished run, whose stages took `seconds`, for the next forecast.

    The time of detail depends on what moves in the capture: its rate is averaged with the earlier one.
    """
    found = _read(plan.predictor)
    earlier = StageRates() if found is None else found.rates
    work = _work(plan, [chunk.length for chunk in plan.chunks])
    taken = {**seconds, "network": seconds.get("predict", 0.0)}
    measured = {
        name: taken[name] / work[name]
        for name in StageRates.model_fields
        if taken.get(name, 0.0) >= _MIN_MEASURED_S and work[name] > 0
    }
    if "detail" in measured:
        measured["detail"] = math.sqrt(measured["detail"] * earlier.detail)
    rates = earlier.model_copy(update=measured)
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    kept = MeasuredRates(subject=_subject(plan.predictor), date=now, rates=rates)
    with suppress(OutputError):  # without write access the next run measures again
        write_model(_path(kept.subject), kept)


def _seconds(rates: StageRates, stage: str, work: Mapping[str, float]) -> float:
    return work[stage] * (1.0 if stage == "decode" else float(getattr(rates, stage)))


def _work(plan: RunPlan, lengths: Sequence[int]) -> dict[str, float]:
    """Return the work of every stage in the units of its rate; decoding in seconds."""
    forecast, settings = plan.forecast, plan.settings
    instants, views = sum(lengths), forecast.views
    pixels = sum(height * width for height, width in forecast.own_sizes or (forecast.size,) * views)
    pairs = pixels * min(views - 1, MAX_NEIGHBOURS) if views > 1 else pixels
    maps = sum(transform.map_size[0] * transform.map_size[1] for transform in plan.map_transforms)
    refines = isinstance(plan.predictor, NetworkPredictor) and plan.predictor.network.config.matches is not None
    return {
        "check": float(plan.evidence.will_check),
        "decode": instants * forecast.source_pixels * _DECODE_S,
        "network": forecast.network_tflop(lengths),
        "refine": float(instants * pairs) if refines and settings.refine else 0.0,
        "clean": float(plan.scene.num_times * pairs) if settings.fuse else 0.0,
        "people": float(plan.scene.num_times * len(static_views(plan.scene))) if plan.pose_model else 0.0,
        "detail": forecast.detail_seconds(),
        "motion": float(plan.scene.num_times * forecast.flow_pixels),
        "write": float(plan.scene.num_times * maps),
        "preview": float(settings.preview),
    }


def _read(predictor: Predictor) -> MeasuredRates | None:
    """Return what is kept of a predictor; None if nothing is, or nothing that can be read."""
    subject = _subject(predictor)
    found = read_cached(_path(subject), MeasuredRates)
    return found if found is not None and found.subject == subject else None


def _path(subject: Mapping[str, str]) -> Path:
    digest = hashlib.sha256(repr(dict(subject)).encode()).hexdigest()[:16]
    return cache_folder() / f"measured_rates_{digest}.json"


def _subject(predictor: Predictor) -> dict[str, str]:
    """Return what the rates depend on."""
    record, device = predictor.record, predictor.device
    machine = f"{platform.node()} {platform.machine()}, {torch.get_num_threads()} threads"
    is_network = isinstance(predictor, NetworkPredictor)
    compares = isinstance(predictor, NetworkPredictor) and predictor.descriptors is not None
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else machine,
        "precision": PRECISION_NAMES[predictor.precision] if is_network else "",
        "network": (record.sha256 or record.preset or record.name) + (", XFeat" if compares else ""),
        "torch": torch.__version__,
    }
