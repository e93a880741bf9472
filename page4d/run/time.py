"""Times of the stages of a run: the rates that earlier runs measured on this machine, and the forecast from them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pydantic import PositiveFloat

from page4d.io.json_records import FileModel
from page4d.run.cost import KeptMeasurement, Occasion, device_name, occasion, read_measurement, write_measurement
from page4d.run.predictor import NetworkPredictor, Predictor
from page4d.stereo.views import MAX_NEIGHBOURS

if TYPE_CHECKING:
    from page4d.run.plan import RunPlan

_DECODE_S = 1e-8
"""Seconds per pixel of a video; runs measure only how long they wait for frames."""

_MIN_MEASURED_S = 0.5
"""Rates of shorter stages are not kept: their overhead is too large a part."""

STAGES = ("check", "decode", "network", "refine", "clean", "detail", "motion", "write", "preview")


class StageRates(FileModel):
    """Seconds per unit of work, as earlier runs took; the defaults were measured on one core at 128x96 px.

    `network` and `detail` are factors on their own forecasts; `refine` and `clean` are seconds per pixel of the
    network and neighbouring view, `motion` seconds per pixel whose flow is measured, `write` seconds per pixel of a
    map, `preview` and `check` (of a calibration) seconds.
    """

    network: PositiveFloat = 1.0
    refine: PositiveFloat = 3e-6
    clean: PositiveFloat = 2e-6
    detail: PositiveFloat = 1.0
    motion: PositiveFloat = 1.2e-6
    write: PositiveFloat = 6e-7
    preview: PositiveFloat = 6.0
    check: PositiveFloat = 4.0


class MeasuredRates(KeptMeasurement):
    """The rates of a network on a machine; `at` is the run that measured them last."""

    rates: StageRates


@dataclass(frozen=True, kw_only=True)
class TimeForecast:
    """Expected seconds of the stages of a run, without registration, and of the whole run.

    Stages overlap: while the network and refinement compute a chunk, the previous one is cleaned and written, and
    the frames of the next one are decoded.
    """

    seconds: Mapping[str, float]
    total: float
    measured: Occasion | None = None


def forecast_time(plan: "RunPlan") -> TimeForecast:
    """Forecast the time of a run from the rates of earlier ones."""
    found = _read(plan.predictor)
    rates = StageRates() if found is None else found.rates
    lengths = [chunk.length for chunk in plan.chunks]
    once = [max(lengths)] if len(lengths) > 1 and plan.settings.fuse else []  # the background
    work, before = _work(plan, lengths), _work(plan, once)
    seconds = {name: _seconds(rates, name, work) for name in STAGES}
    background = {name: _seconds(rates, name, before) for name in ("decode", "network", "refine")}
    predicted = seconds["network"] + seconds["refine"]
    written = seconds["clean"] + seconds["detail"] + seconds["motion"] + seconds["write"]
    overlaps = torch.get_num_threads() > 1 or plan.predictor.device.type == "cuda"
    both = max(predicted, written, seconds["decode"]) if overlaps else predicted + written + seconds["decode"]
    return TimeForecast(
        seconds={name: seconds[name] + background.get(name, 0.0) for name in STAGES},
        total=both + sum(background.values()) + seconds["preview"] + seconds["check"],
        measured=None if found is None else found.at,
    )


def record_rates(plan: "RunPlan", seconds: Mapping[str, float]) -> None:
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
    write_measurement(MeasuredRates(subject=_subject(plan.predictor), at=occasion(), rates=rates))


def _seconds(rates: StageRates, stage: str, work: Mapping[str, float]) -> float:
    return work[stage] * (1.0 if stage == "decode" else float(getattr(rates, stage)))


def _work(plan: "RunPlan", lengths: Sequence[int]) -> dict[str, float]:
    """Return the work of every stage in the units of its rate; decoding in seconds."""
    forecast, settings = plan.forecast, plan.settings
    instants, views = sum(lengths), forecast.views
    pixels = sum(height * width for height, width in forecast.own_sizes or (forecast.size,) * views)
    pairs = pixels * min(views - 1, MAX_NEIGHBOURS) if views > 1 else pixels
    maps = sum(transform.map_size[0] * transform.map_size[1] for transform in plan.map_transforms)
    refines = isinstance(plan.predictor, NetworkPredictor) and plan.predictor.network.config.matches is not None
    return {
        "decode": instants * forecast.source_pixels * _DECODE_S,
        "network": forecast.network_seconds(lengths),
        "refine": float(instants * pairs) if refines and settings.refine else 0.0,
        "clean": float(plan.scene.num_times * pairs) if settings.fuse else 0.0,
        "detail": forecast.detail_seconds(),
        "motion": float(plan.scene.num_times * forecast.flow_pixels),
        "write": float(plan.scene.num_times * maps),
        "preview": float(settings.preview),
        "check": float(plan.will_check or plan.calibration_check is not None),
    }


def _read(predictor: Predictor) -> MeasuredRates | None:
    return read_measurement(MeasuredRates, _subject(predictor))


def _subject(predictor: Predictor) -> dict[str, str]:
    """Return what the rates depend on."""
    record = predictor.record
    return {
        "device": device_name(predictor.device),
        "network": record.sha256 or record.preset or record.name,
        "torch": torch.__version__,
    }
