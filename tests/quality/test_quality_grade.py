"""Grades: monotonic in every measurement, faults come first, and the change names what is wrong."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from page4d.conventions import Scale
from page4d.output.record import NetworkRecord, PixelRecord, RigRecord, RunRecord, SceneRecord, ViewRecord
from page4d.output.rig_record import (
    CalibrationCheckRecord,
    FindingRecord,
    PairFitRecord,
    PairRecord,
    PlacedRecord,
    RegistrationRecord,
)
from page4d.quality.grade import LETTERS, grade, measured_ranges, outlier_views
from page4d.quality.record import Overall, PairQuality

GOOD = Overall(
    with_depth=1.0,
    confirmed=0.95,
    contradicted=0.0,
    single=0.05,
    confidence=0.8,
    residual=0.001,
    residual_px=0.1,
    photo=0.9,
    photo_gain=0.6,
    flicker=0.0,
    unlike_training=0.5,
    camera_gap_deg=0.5,
    are_cameras_given=True,
    seam=None,
)

WORSE: dict[str, tuple[float, ...]] = {
    "contradicted": (0.05, 0.2, 0.6),
    "residual": (0.01, 0.05, 0.5),
    "confidence": (0.5, 0.2, 0.0),
    "photo_gain": (0.3, 0.1, -0.3),
    "camera_gap_deg": (3.0, 20.0, 120.0),
    "flicker": (0.02, 0.1, 0.5),
    "seam": (0.04, 0.1, 0.5),
}


def run_record(views: int = 3, **changes: Any) -> RunRecord:
    placed = PixelRecord(content_size=(96, 72), canvas_size=(96, 72))
    values: dict[str, Any] = {
        "status": "complete",
        "settings": {"calibration": "rig.json", "poses": "input", "fuse": True, "depth": None},
        "scale": Scale.METRIC,
        "unit": "metre",
        "depth_scale": 1000.0,
        "scene": SceneRecord(name="x", synchronisation="same start", calibration="rig.json"),
        "views": [
            ViewRecord(
                name=f"cam{index}",
                safe_name=f"cam{index}",
                file=f"cam{index}.mp4",
                original_size=(96, 72),
                map_size=(96, 72),
                pixel_transform=placed,
            )
            for index in range(views)
        ],
        "times": [0.0, 0.1],
        "network": NetworkRecord(name="net", trained=True),
    }
    return RunRecord(**{**values, **changes})


def pair(first: str, second: str, gain: float) -> PairQuality:
    return PairQuality(
        views=(first, second),
        overlap=0.5,
        confirmed=0.9,
        contradicted=0.1,
        residual=0.01,
        residual_px=1.0,
        photo=0.5,
        photo_gain=gain,
    )


def test_the_best_measurements_have_no_reason_and_no_change():
    found = grade(GOOD, (), run_record())
    assert (found.letter, found.reasons, found.first_change) == ("A", (), "")
    assert set(measured_ranges(GOOD).values()) == {0.0}


@pytest.mark.parametrize("with_pictures", [True, False])
@pytest.mark.parametrize("name", WORSE)
def test_a_worse_measurement_never_improves_the_grade(name: str, with_pictures: bool):
    if name == "photo_gain" and not with_pictures:
        return
    start = GOOD if with_pictures else replace(GOOD, photo=None, photo_gain=None)
    values = [replace(start, **{name: value}) for value in WORSE[name]]
    errors = [grade(overall, (), run_record()).expected_error for overall in (start, *values)]
    assert errors == sorted(errors)


def test_every_part_matters_with_or_without_pictures():
    for name, values in WORSE.items():
        raised = [
            grade(replace(start, **{name: values[-1]}), (), run_record()).expected_error
            > grade(start, (), run_record()).expected_error
            for start in (GOOD, replace(GOOD, photo=None, photo_gain=None))
        ]
        assert any(raised), name


def test_letters_follow_the_expected_error():
    bad = replace(GOOD, photo_gain=-0.3, contradicted=0.5, confidence=0.0, residual=0.5, camera_gap_deg=150.0)
    for overall in (GOOD, replace(GOOD, photo_gain=0.2), bad):
        found = grade(overall, (), run_record())
        assert 0 < found.expected_error <= 1
        limits = list(LETTERS.values())
        assert sum(found.expected_error > limit for limit in limits) == "ABCDE".index(found.letter)
    assert grade(bad, (), run_record()).letter in "DE"


def test_an_untrained_network_is_named_first():
    found = grade(GOOD, (), run_record(network=NetworkRecord(name="net", trained=False)))
    assert found.letter in "DE"
    assert "--untrained" in found.first_change


def test_a_fault_of_the_calibration_is_named_with_its_fix():
    finding = FindingRecord(
        fault="swapped",
        views=["cam0", "cam1"],
        certainty="certain",
        what="cam0 and cam1 are swapped",
        fix="swap them",
    )
    run = run_record(calibration_check=CalibrationCheckRecord(findings=[finding]))
    found = grade(GOOD, (), run)
    assert (found.letter, found.first_change) == ("D", "swap them")
    unused = run_record(
        calibration_check=CalibrationCheckRecord(findings=[finding]), settings={**run.settings, "poses": "predicted"}
    )
    assert grade(GOOD, (), unused).letter == "A"


def test_the_view_that_fits_no_other_is_found():
    assert outlier_views(LONELY) == ("cam3",)


def test_no_view_is_named_where_none_fits():
    pairs = [pair("cam0", "cam1", -0.1), pair("cam1", "cam2", 0.0), pair("cam0", "cam2", 0.01)]
    assert outlier_views(pairs) == ()


LONELY = [
    *(pair(one, other, 0.3) for one, other in (("cam0", "cam1"), ("cam0", "cam2"), ("cam1", "cam2"))),
    *(pair(f"cam{index}", "cam3", -0.1) for index in range(3)),
]
"""Pairs of four views of which the last fits no other."""

FITS = PairFitRecord(views=("cam0", "cam1"), evidence="people", score=0.9, num_instants=50, fits=True)
MOVING = RigRecord(asked="auto", cameras="moving", num_times=2, limit_px=1.0, views=[])
DEMO = NetworkRecord(name="mv-demo 1.1", trained=True, notice="a demonstration")
NETWORK = "use a network for real footage: --weights da3-base"
CHECK = "`page4d inspect-scene SCENE --calibration rig.json --check`"
RESIZED: dict[str, Any] = {
    "calibration": "my rig.toml",
    "poses": "input",
    "calibration_unit": "mm",
    "calibration_resize": "scale",
    "views": ["cam0", "cam1"],
    "sync": "audio",
    "allow_damaged": True,
    "max_megapixels": 64.0,
}
RESIZED_WORDS = (
    "--calibration 'my rig.toml' --calibration-unit mm --calib-resize scale --views cam0,cam1 --sync audio "
    "--allow-damaged"
)
COMPARE = "compare the calibration, its unit and the clocks"
PREDICTED: dict[str, Any] = {"calibration": None, "poses": "input"}
SEEN = [PairRecord(views=("cam0", "cam1"), evidence="people", score=0.6, accepted=True)]
ADVICE = "run 'page4d weights get people', or give --calibration"


def registration(source: str, pairs: list[PairRecord]) -> RegistrationRecord:
    placed = [
        PlacedRecord(view=f"cam{index}", placed=source == "evidence", source=source, focal=1, focal_source="option")
        for index in range(3)
    ]
    return RegistrationRecord(asked="auto", cameras=placed, pairs=pairs, advice=ADVICE)


@pytest.mark.parametrize(
    ("changes", "pairs", "expected"),
    [
        ({}, (), f"{COMPARE}: {CHECK}"),
        ({"settings": RESIZED}, (), f"{COMPARE}: {CHECK.replace('--calibration rig.json', RESIZED_WORDS)}"),
        ({"rig": MOVING}, (), f"{COMPARE} with the pictures"),
        ({}, LONELY, f"compare the clock and the calibration of cam3: {CHECK}"),
        ({"network": DEMO}, (), f"{COMPARE}: {CHECK}; if they are right, {NETWORK}"),
        ({"network": DEMO, "calibration_check": CalibrationCheckRecord(pairs=[FITS])}, (), NETWORK),
        ({"settings": PREDICTED}, (), "pass --calibration, or try --register auto"),
        ({"settings": PREDICTED, "rig": MOVING}, (), "pass --calibration"),
        ({"settings": {"calibration": "rig.json", "poses": "predicted"}}, (), "leave out --poses predicted"),
        ({"settings": PREDICTED, "registration": registration("network", [])}, (), ADVICE),
        (
            {"settings": PREDICTED, "registration": registration("network", []), "network": DEMO},
            (),
            f"{ADVICE}; or {NETWORK}",
        ),
        (
            {"settings": PREDICTED, "registration": registration("evidence", SEEN), "network": DEMO},
            (),
            f"{NETWORK}; or pass --calibration",
        ),
        (
            {"settings": PREDICTED, "registration": registration("evidence", SEEN)},
            LONELY,
            "correct the clock of cam3: --sync people or --sync FILE; or pass --calibration",
        ),
        (
            {"settings": PREDICTED, "registration": registration("evidence", [])},
            LONELY,
            "correct the clock of cam3: --sync FILE; or pass --calibration",
        ),
    ],
)
def test_the_change_fits_the_cameras_of_the_run(changes: dict[str, Any], pairs: Sequence[PairQuality], expected: str):
    run = run_record(4 if pairs else 3, **changes)
    found = grade(replace(GOOD, photo_gain=-0.1, camera_gap_deg=5.0), pairs, run)
    assert found.first_change == expected
    known = "registered" if changes.get("settings") is PREDICTED else "calibrated"
    assert any(f"differ by 5.0 deg from the {known} ones" in reason.found for reason in found.reasons)


def test_the_command_of_a_change_is_that_of_a_shell_for_folders_with_spaces():
    found = grade(replace(GOOD, photo_gain=-0.1), (), run_record(settings=RESIZED), "my rig")
    command = shlex.split(found.first_change.split("`")[1])
    assert command[:5] == ["page4d", "inspect-scene", "my rig", "--calibration", "my rig.toml"]


def test_the_demonstration_on_other_footage_is_changed_before_the_calibration():
    found = grade(replace(GOOD, photo_gain=-0.1, unlike_training=1.1), (), run_record(network=DEMO))
    assert found.first_change == NETWORK


def test_predicted_cameras_raise_the_expected_error():
    predicted = replace(GOOD, are_cameras_given=False, camera_gap_deg=None)
    assert grade(predicted, (), run_record()).expected_error > grade(GOOD, (), run_record()).expected_error


def test_flicker_names_the_option_that_causes_it():
    run = run_record(settings={**run_record().settings, "fuse": False})
    assert grade(replace(GOOD, flicker=0.05), (), run).first_change == "leave out --no-fuse"
