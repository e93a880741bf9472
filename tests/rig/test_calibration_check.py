"""Faults of calibrations are named from people or texture; right ones are confirmed as far as these show them."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from page4d.conventions import Scale
from page4d.output.rig_record import CalibrationCheckRecord
from page4d.rig.calibration_check import calibrated_cameras, check_calibration
from page4d.rig.epipolar import RelativePose
from page4d.rig.evidence import PixelEvidence
from page4d.rig.people.pairs import exchange_sides
from page4d.rig.records import Evidence, Lens, PairPose, RigCamera, ViewPeople
from page4d.rig.texture import TextureMatches
from page4d.rig.texture_pairs import determined_pair
from page4d.scene.open import open_scene
from tests.cli.clips import rig as rig_json
from tests.cli.clips import write_scene
from tests.rig.people_rig import Filming, film_people
from tests.rig.walkers import Walk, look_at, observe, ring

NAMES = ("cam01", "cam02", "cam03", "cam04")


def _slow(*values: float) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


def rig(
    seed: int, *, bias: float = 0.004, num_instants: int = 16
) -> tuple[tuple[RigCamera, ...], tuple[ViewPeople, ...]]:
    rng = np.random.default_rng(seed)
    cameras, walks = ring(4, rng), [Walk.random(rng) for _ in range(1 + seed % 2)]
    return cameras, observe(cameras, walks, rng, bias=bias, num_instants=num_instants)


def turned(camera: RigCamera, degrees: float, axis: np.ndarray) -> RigCamera:
    turn = Rotation.from_rotvec(np.radians(degrees) * axis / np.linalg.norm(axis)).as_matrix()
    return camera.placed(turn @ camera.rotation, camera.center)


def checked(
    cameras: tuple[RigCamera, ...] | list[RigCamera], people: tuple[ViewPeople, ...]
) -> CalibrationCheckRecord:
    return check_calibration(NAMES, cameras, people)


NOBODY = ((),) * 4


@dataclass
class Texture:
    """Matches of points in a box that cameras around it see, with a quarter of wrong ones, of some pairs of views.

    The pictures of the last view may be flipped along an `axis`; others match them if one of both is `flipped` back.
    """

    cameras: tuple[RigCamera, ...]
    pairs: tuple[tuple[int, int], ...] = tuple(combinations(range(4), 2))
    right: int = 120
    sought: list[tuple[tuple[int, int], bool]] = field(default_factory=list)
    axis: int | None = None
    flipped: int | None = None

    def mirrored(self, view: int) -> "Texture":
        return replace(self, flipped=view)

    def affinity(self) -> np.ndarray:
        return np.ones((len(self.cameras),) * 2)

    def pair(
        self, views: tuple[int, int], lenses: tuple[Lens, Lens], pose: RelativePose | None = None
    ) -> PairPose | None:
        self.sought.append((views, pose is None))
        last = len(self.cameras) - 1
        if views not in self.pairs or (self.axis is not None and last in views) != (self.flipped in views):
            return None
        rng = np.random.default_rng(sum(views))
        points = rng.uniform(-1.2, 1.2, (4 * self.right // 3, 3))
        ends = []
        for view in views:
            camera = self.cameras[view]
            local = points @ camera.rotation.T + camera.world_to_camera[:3, 3]
            plane = local[:, :2] / local[:, 2:] + rng.normal(scale=0.0003, size=(len(points), 2))
            ends.append(plane @ camera.lens.intrinsics[:2, :2].T + camera.lens.intrinsics[:2, 2])
            for axis in [self.axis] * (view == last and self.axis is not None) + [0] * (view == self.flipped):
                ends[-1][:, axis] = camera.lens.image_size[1 - axis] - ends[-1][:, axis]
        ends[1][self.right :] = ends[1][rng.permutation(np.arange(self.right, len(points)))]
        ids = np.arange(len(points))
        sides = {"first": ends[0], "second": ends[1], "first_ids": ids, "second_ids": ids}
        matches = TextureMatches(**sides, lenses=lenses, instants=0 * ids, keys=ids, tolerance=1.0)
        return determined_pair(matches, views, Evidence.TEXTURE, pose=pose)


def arc() -> tuple[RigCamera, ...]:
    return ring(4, np.random.default_rng(4), spread=np.pi / 2)


def swapped(cameras: tuple[RigCamera, ...]) -> list[RigCamera]:
    return [cameras[2], cameras[1], cameras[0], cameras[3]]


def halved(cameras: tuple[RigCamera, ...]) -> list[RigCamera]:
    half = np.diag([0.5, 0.5, 1.0])
    return [replace(c, lens=replace(c.lens, intrinsics=half @ c.lens.intrinsics)) for c in cameras]


def first_turned(cameras: tuple[RigCamera, ...]) -> list[RigCamera]:
    return [turned(cameras[0], 5.0, np.array([0.3, 0.2, 1.0])), *cameras[1:]]


def elsewhere(spread: float) -> Callable[[tuple[RigCamera, ...]], list[RigCamera]]:
    return lambda _: list(ring(4, np.random.default_rng(9), spread=spread))


CHAIN, APART, LINKS = ((0, 1), (1, 2), (0, 2)), ((0, 1), (2, 3)), ((0, 1), (0, 3), (1, 3))


@pytest.mark.parametrize(
    ("change", "pairs", "right", "fault", "views", "unconfirmed"),
    [
        (tuple, None, 120, None, (), ()),
        (tuple, CHAIN, 120, None, (), ("cam04",)),
        (tuple, APART, 120, None, (), ("cam03", "cam04")),
        (tuple, None, 40, None, (), ()),
        (tuple, None, 30, None, (), NAMES),
        (swapped, None, 120, "swapped", ("cam01", "cam03"), None),
        (swapped, None, 45, "swapped", ("cam01", "cam03"), None),
        (first_turned, None, 120, "turned", ("cam01",), None),
        (first_turned, CHAIN[:2], 120, "turned", ("cam01",), None),
        (first_turned, APART, 120, "turned", ("cam01", "cam02"), None),
        (elsewhere(np.pi / 2), CHAIN[:1], 120, "contradicted", NAMES[:2], None),
        (elsewhere(2 * np.pi), CHAIN[2:], 120, None, (), NAMES),
        (halved, APART, 120, "convention", NAMES, None),
    ],
)
def test_texture_names_faults_and_confirms_what_it_determines(
    change: Callable, pairs: tuple | None, right: int, fault: str | None, views: tuple, unconfirmed: tuple | None
) -> None:
    cameras = arc()
    texture = Texture(cameras, right=right) if pairs is None else Texture(cameras, pairs, right)
    record = check_calibration(NAMES, change(cameras), NOBODY, [texture])
    assert [(finding.fault, finding.views) for finding in record.findings] == (
        [] if fault is None else [(fault, views)]
    )
    assert record.verdict.startswith("no fault" if unconfirmed == () else "" if fault else "not confirmed: cam")
    assert unconfirmed is None or record.unconfirmed == unconfirmed


def level(cameras: tuple[RigCamera, ...]) -> tuple[RigCamera, ...]:
    """Return cameras that look horizontally at one height."""
    target = np.array([0, 0, 1.0])
    places = (one.center * [1, 1, 0] + target for one in cameras)
    return tuple(replace(cameras[0], world_to_camera=look_at(place, target)) for place in places)


@pytest.mark.parametrize(
    ("placed", "axis", "pairs", "certainties"),
    [
        (tuple, 0, LINKS, ["certain"]),
        (tuple, 1, LINKS, ["certain"]),
        (tuple, 0, LINKS[2:], ["likely"]),
        (level, 0, LINKS[1:2], ["likely"]),
        (level, 1, LINKS[1:2], []),
    ],
)
def test_texture_names_mirrored_pictures(placed: Callable, axis: int, pairs: tuple, certainties: list) -> None:
    """Either of two level cameras may be upside down."""
    cameras = placed(arc())
    findings = check_calibration(NAMES, cameras, NOBODY, [Texture(cameras, pairs, axis=axis)]).findings
    assert [(one.fault, one.views) for one in findings] == [("mirrored", ("cam04",))] * len(certainties)
    assert [one.certainty for one in findings] == certainties
    for one in findings:
        assert one.fix.startswith("mirror the video of cam04 back")
        assert ("upside down" in one.what) == ("vflip" in one.fix) == (axis == 1)


def test_a_right_calibration_needs_no_best_poses_and_no_pair_of_confirmed_cameras() -> None:
    texture = Texture(arc())
    assert not check_calibration(NAMES, texture.cameras, NOBODY, [texture]).unconfirmed
    assert 3 <= len(texture.sought) < 6
    assert not any(is_best for _, is_best in texture.sought)


def test_texture_is_not_sought_where_people_confirm_all_cameras() -> None:
    cameras, people = rig(3)
    report = check_calibration(NAMES, cameras, people, [Texture(cameras, pairs=())])
    assert {pair.evidence for pair in report.pairs} == {"people"}
    assert report.verdict.startswith("no fault of the calibration is found")


@pytest.mark.parametrize(("noise_deg", "bias"), [(0.0, 0.004), _slow(1.0, 0.004), _slow(0.5, 0.02)])
def test_a_right_calibration_is_not_accused(noise_deg: float, bias: float) -> None:
    cameras, people = rig(3, bias=bias)
    rng = np.random.default_rng(1)
    noisy = [turned(camera, noise_deg, rng.normal(size=3)) for camera in cameras]
    assert checked(noisy, people).findings == ()


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 3)])
def test_swapped_cameras_are_named(first: int, second: int) -> None:
    cameras, people = rig(first + second)
    swapped = list(cameras)
    swapped[first], swapped[second] = cameras[second], cameras[first]
    (finding,) = checked(swapped, people).findings
    assert (finding.fault, finding.views) == ("swapped", (NAMES[first], NAMES[second]))
    assert finding.fix.startswith("rename the cameras")


@pytest.mark.parametrize(("view", "degrees", "instants"), [(0, 10.0, 16), (0, 10.0, 30), _slow(2, 20.0, 16)])
def test_a_turned_camera_is_named_with_its_angle(view: int, degrees: float, instants: int) -> None:
    """Not as certain from few instants."""
    cameras, people = rig(5, num_instants=instants)
    axis = np.random.default_rng(view).normal(size=3)
    given = [turned(camera, degrees, axis) if number == view else camera for number, camera in enumerate(cameras)]
    (finding,) = checked(given, people).findings
    assert (finding.fault, finding.views) == ("turned", (NAMES[view],))
    assert finding.angle_deg == pytest.approx(degrees, abs=2.5)
    assert finding.certainty == ("certain" if instants >= 25 else "likely")


@pytest.mark.parametrize(("view", "axis"), [(0, 0), (3, 0), (3, 1)])
def test_mirrored_pictures_are_named(view: int, axis: int) -> None:
    """The person's left is on the right of the picture, where the pose model finds a left hand for a right one."""
    cameras, people = rig(5)
    (finding,) = checked(*mirrored(cameras, people, view, axis)).findings
    assert (finding.fault, finding.views, finding.certainty) == ("mirrored", (NAMES[view],), "certain")


def mirrored(cameras: tuple[RigCamera, ...], people: tuple[ViewPeople, ...], view: int, axis: int) -> tuple:
    """Return the rig with flipped pictures of a view whose principal point is off their centre."""
    side, offset = cameras[view].lens.image_size[1 - axis], np.array([40.0, 0.0])
    lens = replace(cameras[view].lens, intrinsics=cameras[view].lens.intrinsics.copy())
    lens.intrinsics[:2, 2] += offset
    given = [*cameras[:view], replace(cameras[view], lens=lens), *cameras[view + 1 :]]
    sign = np.where(np.arange(2) == axis, -1, 1)
    seen = tuple(replace(one, joints=(sign < 0) * side + sign * (one.joints + offset)) for one in people[view])
    return given, (*people[:view], exchange_sides(seen), *people[view + 1 :])


def test_mirrored_pictures_of_a_person_at_their_centre_are_likely() -> None:
    """Who hardly moves sideways fits the mirrored view, too, with 0.7 of the score."""
    film = film_people(Filming(angles_deg=(0, 100, 200), num_instants=24, noise_px=1.0, on_treadmill=True))
    both = zip(film.lenses, film.world_to_camera, strict=True)
    cameras = tuple(RigCamera(lens=lens, world_to_camera=pose) for lens, pose in both)
    assert not check_calibration(NAMES[:3], cameras, film.people).findings
    (finding,) = check_calibration(NAMES[:3], *mirrored(cameras, film.people, 1, 0)).findings
    assert (finding.fault, finding.views, finding.certainty) == ("mirrored", ("cam02",), "likely")


@pytest.mark.parametrize(
    ("instants", "capture", "bias", "names"), [(30, 8, 0.004, ("cam03",)), (16, 8, 0.004, ()), (30, 7, 0.05, ())]
)
def test_a_view_of_another_capture_is_named(instants: int, capture: int, bias: float, names: tuple) -> None:
    """No pose fits; few instants accuse nobody, and neither do keypoints of this one off by 0.1 of the body."""
    cameras, people = rig(7, num_instants=instants)
    other = rig(capture, bias=bias, num_instants=instants)[1][2]
    findings = checked(cameras, (*people[:2], other, people[3])).findings
    assert [(one.fault, one.views, one.certainty) for one in findings] == [
        ("contradicted", (name,), "likely") for name in names
    ]


def test_of_two_cameras_at_one_pose_the_wrong_one_is_to_be_corrected() -> None:
    cameras, people = rig(7)
    (finding,) = checked([cameras[0], cameras[0], *cameras[2:]], people).findings
    assert (finding.fault, finding.views) == ("duplicate", ("cam01", "cam02"))
    assert "correct the pose of cam02" in finding.fix


def test_a_displaced_camera_is_named() -> None:
    cameras, people = rig(9)
    moved = cameras[1].placed(cameras[1].rotation, cameras[1].center + np.array([1.0, 0.8, 0.5]))
    (finding,) = check_calibration(NAMES, [cameras[0], moved, *cameras[2:]], people, scale=Scale.METRIC).findings
    assert finding.views == ("cam02",)
    assert re.match(r"cam02 is 1\.\d+ m from its place", finding.what)
    assert finding.fix.startswith("calibrate cam02 again")


@pytest.mark.parametrize(
    ("angles_deg", "delays", "others", "fault", "fix"),
    [
        ((0, 70, 140, 210), (0, 0, 8, 0), {"num_instants": 24}, "turned", ", calibrate cam03 again"),
        (
            (0, 41.45, 151.66, 170.49),
            (0, 5, 0, 0),
            {"num_instants": 30, "bias_px": 4.0, "on_treadmill": True, "seed": 153},
            "mirrored",
            ", or mirror the video of cam02",
        ),
        (
            (0, 137, 269),
            (0, 0, 5),
            {"num_instants": 15, "bias_px": 10.4, "missed": 0.1, "seed": 498},
            "swapped",
            ", or rename the cameras",
        ),
    ],
)
def test_a_late_view_has_a_hint_to_the_clocks(
    angles_deg: tuple, delays: tuple, others: dict, fault: str, fix: str
) -> None:
    """Another pose, mirrored pictures or an exchange fit people 0.17 or 0.27 s later better with right cameras."""
    late = film_people(Filming(angles_deg=angles_deg, delays=delays, noise_px=2.0, **others))
    both = zip(late.lenses, late.world_to_camera, strict=True)
    cameras = [RigCamera(lens=lens, world_to_camera=pose) for lens, pose in both]
    (finding,) = check_calibration(NAMES[: len(cameras)], cameras, late.people).findings
    assert (finding.fault, finding.fix.startswith(f"check the clocks{fix}")) == (fault, True)


def left_handed(pose: np.ndarray) -> np.ndarray:
    return np.diag([1, -1, 1, 1]) @ pose @ np.diag([1, -1, 1, 1])


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (np.linalg.inv, "the poses are camera-to-world:"),
        (left_handed, "the poses are those of a left-handed system (y up):"),
        (
            lambda pose: left_handed(np.linalg.inv(pose)),
            "the poses are camera-to-world in a left-handed system (y up):",
        ),
    ],
)
@pytest.mark.parametrize(("bias", "certainty"), [(0.004, "certain"), (0.02, "likely")])
def test_conventions_of_poses_are_named(
    given: Callable[[np.ndarray], np.ndarray], what: str, bias: float, certainty: str
) -> None:
    """Also by people whose keypoints fit right cameras with a score below that of a pair that fits."""
    cameras, people = rig(11, bias=bias)
    wrong = [replace(camera, world_to_camera=given(camera.world_to_camera)) for camera in cameras]
    (finding,) = checked(wrong, people).findings
    assert finding.what.startswith(what)
    assert finding.certainty == certainty


def test_people_of_wrong_clocks_accuse_no_camera() -> None:
    """They fit no pose; cameras 2 and 3 exchanged would fit them loosely."""
    rng = np.random.default_rng(5)
    cameras = ring(4, rng)
    delays = (0.0, 0.9, -0.7, 1.6)
    people = observe(cameras, [Walk.random(rng)], rng, bias=0.006, num_instants=16, delays=delays)
    assert checked(cameras, people).findings == ()


def test_another_image_size_is_named() -> None:
    cameras, people = rig(11)
    (finding,) = checked(halved(cameras), people).findings
    assert "another size" in finding.what
    assert "--calib-resize scale" in finding.fix


def test_without_evidence_nothing_is_confirmed_and_copies_are_still_named() -> None:
    cameras, _ = rig(1)
    report = checked(cameras, NOBODY)
    assert (report.findings, report.pairs, report.unconfirmed) == ((), (), NAMES)
    (finding,) = checked([cameras[0], *cameras[:3]], NOBODY).findings
    assert finding.fault == "duplicate"


def test_cameras_of_static_calibrated_views_are_returned(tmp_path: Path) -> None:
    write_scene(tmp_path / "videos")
    (tmp_path / "rig.json").write_text(rig_json("cam01", "cam02"))
    scene = open_scene(tmp_path / "videos", calibration=tmp_path / "rig.json")
    assert scene.has_static_rig
    cameras = calibrated_cameras(PixelEvidence(scene))
    assert [camera.center[0] for camera in cameras] == [0.0, -1.0]
    np.testing.assert_allclose(cameras[0].lens.intrinsics, [[60, 0, 32], [0, 60, 24], [0, 0, 1]])
    assert not replace(scene, views=scene.views[:1]).has_static_rig
    assert not open_scene(tmp_path / "videos").has_static_rig
