"""`run.json`: its golden text and its validation."""

import os
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from page4d.conventions import Scale
from page4d.errors import InputError
from page4d.geometry.distortion import Distortion, LensModel
from page4d.geometry.pixels import fit_views
from page4d.io.json_records import read_model, write_model
from page4d.output.layout import OutputLayout
from page4d.output.record import (
    UNTRAINED_NOTICE,
    ChunkRecord,
    CountsRecord,
    NetworkRecord,
    RunRecord,
    SceneRecord,
    SeamRecord,
    SourceRecord,
    TransformRecord,
    view_record,
)
from page4d.scene.records import Clock, ViewCamera
from tests.output.output_scene import view_of

GOLDEN = Path(__file__).parent / "golden" / "run.json"


def example(layout: OutputLayout) -> RunRecord:
    transforms = fit_views([(1080, 1920), (1920, 1080)], 518, 14)
    return RunRecord(
        page4d="0.0.0",
        status="complete",
        settings={"size": 518, "sync": "audio", "views": None, "min_confidence": 0.1, "formats": ["depth", "points"]},
        scale=Scale.METRIC,
        unit="metre",
        depth_scale=1000.0,
        scene=SceneRecord(name="juggling", synchronisation="audio", calibration="Calib.toml"),
        views=[
            view_record(layout, view_of("cam 1"), transforms[0]),
            view_record(
                layout,
                view_of(
                    "Kamera ü",
                    Clock(offset_s=-0.25, rate=1.001),
                    ViewCamera(
                        world_to_camera=torch.eye(4),
                        intrinsics=torch.tensor([[1500, 0, 540.5], [0, 1501, 960], [0, 0, 1]]),
                        distortion=Distortion(model=LensModel.BROWN_CONRADY, coefficients=(-0.25, 0.5, 0.0, 0.0)),
                    ),
                    suffix=".mov",
                ),
                transforms[1],
                SourceRecord(bytes=123_456_789, sha256_ends="0f" * 32, frames=[8, 9, 10], seconds=[0.25, 0.5, 0.75]),
            ),
        ],
        times=[0.0, 1 / 30, 2 / 30],
        network=NetworkRecord(name="page4d", preset="tiny", trained=False, config={"depth": 2}),
        chunks=[
            ChunkRecord(start=0, stop=2, overlap=0, seconds=1.5),
            ChunkRecord(
                start=1,
                stop=3,
                overlap=1,
                seconds=1.25,
                transform=TransformRecord(
                    scale=1.01, rotation=[[1, 0, 0], [0, 1, 0], [0, 0, 1]], translation=(0.0, 0.5, -0.25)
                ),
                seam=SeamRecord(residual=0.004, rotation_deg=0.1, scale_ratio=1.01),
            ),
        ],
        counts=CountsRecord(clipped_depths=3, points=600_000),
        timings={"decode": 0.5, "predict": 2.75},
        peak_memory_bytes=2_000_000_000,
        warnings=["cam 1: alpha ignored"],
    )


def test_run_json_equals_the_golden_text(tmp_path: Path) -> None:
    layout = OutputLayout(tmp_path, ("cam 1", "Kamera ü"))
    write_model(layout.run, example(layout))
    if os.environ.get("PAGE4D_REGENERATE"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_bytes(layout.run.read_bytes())
    assert layout.run.read_text() == GOLDEN.read_text()
    assert read_model(layout.run, RunRecord) == example(layout)


def test_an_untrained_network_always_has_the_notice() -> None:
    assert NetworkRecord(name="x", trained=False).notice == UNTRAINED_NOTICE
    assert NetworkRecord(name="x", trained=False, notice="fine").notice == UNTRAINED_NOTICE
    assert NetworkRecord(name="x", trained=True).notice == ""
    assert UNTRAINED_NOTICE.isupper()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"unit": "arbitrary"}, "contradicts scale"),
        ({"depth_scale": float("inf")}, "depth_scale"),
        ({"settings": {"x": float("nan")}}, "settings"),
        ({"settings": {"x": [{"y": float("nan")}]}}, "settings"),
        ({"times": [float("nan")]}, "times"),
        ({"times": [1.0, 0.5, 0.25]}, "times do not increase"),
        ({"times": [0.0, 0.0, 0.0]}, "times do not increase"),
        ({"depth_scale": 1e300}, "depth_scale\n  Input should be less"),
        ({"depth_scale": 1e-300}, "depth_scale\n  Input should be greater"),
        ({"more": 1}, "more"),
        ({"views": []}, "views"),
    ],
)
def test_invalid_values_are_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    record = example(OutputLayout(tmp_path, ("cam 1", "Kamera ü"))).model_dump()
    with pytest.raises(ValidationError, match=words):
        RunRecord(**{**record, **change})


def test_two_views_of_the_same_name_are_refused(tmp_path: Path) -> None:
    record = example(OutputLayout(tmp_path, ("cam 1", "Kamera ü"))).model_dump()
    record["views"][1]["safe_name"] = record["views"][0]["safe_name"]
    with pytest.raises(ValidationError, match="same safe_name"):
        RunRecord(**record)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"safe_name": "cam_1"', '"safe_name": "../../x"', r"views\.0\.safe_name"),
        ('"safe_name": "cam_1"', '"safe_name": ".."', r"views\.0\.safe_name"),
        ('"status": "complete"', '"status": "done"', "status"),
        ('"seed": 0', '"seed": 0, "sed": 1', "sed: unknown key"),
        ('"model": "brown-conrady"', '"model": "x"', r"views\.1\.undistorted\.model"),
        ('"rate": 1.001', '"rate": 1e9', r"views\.1\.clock\.rate"),
        ('"rate": 1.001', '"rate": 1e-300', r"views\.1\.clock\.rate: Input should be greater"),
        ('"offset_s": -0.25', '"offset_s": 1e300', r"offset_s: Input should be less"),
        ('"rate": 1.001', '"rate": 1.001, "drift": 0', r"views\.1\.clock\.drift"),
    ],
)
def test_an_invalid_file_is_refused_with_the_field(tmp_path: Path, old: str, new: str, words: str) -> None:
    layout = OutputLayout(tmp_path, ("cam 1", "Kamera ü"))
    write_model(layout.run, example(layout))
    text = layout.run.read_text()
    assert old in text
    layout.run.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=words):
        read_model(layout.run, RunRecord)


def test_a_file_name_in_another_encoding_is_escaped(tmp_path: Path) -> None:
    layout = OutputLayout(tmp_path, ("caf\udce9",))
    record = view_record(layout, view_of("caf\udce9"), fit_views([(14, 14)], 14, 14)[0])
    assert (record.name, record.safe_name) == ("caf\\udce9", "caf_")
