"""Table of the calibration check: a right calibration with cameras swapped, turned, made equal, and common mistakes.

python tools/measure_calibration_check.py SCENE CALIBRATION [--resize crop-center] [--seed 1]
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation

from page4d.options import RegisterSettings
from page4d.rig.calibration_check import MIN_COMMON, calibrated_cameras, check_calibration
from page4d.rig.epipolar import RelativePose
from page4d.rig.evidence import PixelEvidence, TextureSource
from page4d.rig.learned import texture_kinds
from page4d.rig.mistakes import common_mistakes
from page4d.rig.people.model import is_fetched
from page4d.rig.people_clocks import check_clocks
from page4d.rig.records import Lens, PairPose, RigCamera, ViewPeople
from page4d.scene.open import open_scene


@dataclass(frozen=True)
class StoredTexture(TextureSource):
    """Texture whose best poses are computed once for all cases."""

    poses: dict[object, PairPose | None] = field(default_factory=dict)
    flips: dict[int, TextureSource] = field(default_factory=dict)

    def mirrored(self, view: int) -> TextureSource:
        """Return the source with the flipped pictures of a view."""
        return self.flips.get(view) or self.flips.setdefault(view, super().mirrored(view))

    def pair(
        self, views: tuple[int, int], lenses: tuple[Lens, Lens], pose: RelativePose | None = None
    ) -> PairPose | None:
        """Return the best pose of a pair of views, or a given one."""
        if pose is not None:
            return super().pair(views, lenses, pose)
        key = (views, *(lens.intrinsics.tobytes() for lens in lenses))
        if key not in self.poses:
            self.poses[key] = super().pair(views, lenses)
        return self.poses[key]


def cases(cameras: list[RigCamera]) -> Iterator[tuple[str, set[int], list[RigCamera]]]:
    """Yield labels whose first word is the kind, the views at fault, and the cameras."""
    number = range(len(cameras))
    yield "right", set(), cameras
    for i, j in combinations(number, 2):
        order = {i: j, j: i}
        yield f"swap {i + 1} {j + 1}", {i, j}, [cameras[order.get(k, k)] for k in number]
    for i, j in permutations(number, 2):
        yield f"copy {j + 1} to {i + 1}", {i, j}, [cameras[j if k == i else k] for k in number]
    for angle in (2, 5, 10, 20):
        for i in number:
            for axis in np.eye(3):
                turn = Rotation.from_rotvec(np.radians(angle) * axis).as_matrix()
                moved = cameras[i].placed(turn @ cameras[i].rotation, cameras[i].center)
                yield f"turn-{angle} {i + 1} {axis}", {i}, [moved if k == i else cameras[k] for k in number]
    size = np.mean([np.linalg.norm(a.center - b.center) for a, b in combinations(cameras, 2)])
    for i in number:
        for axis in np.eye(3):
            moved = cameras[i].placed(cameras[i].rotation, cameras[i].center + 0.3 * size * axis)
            yield f"shift {i + 1} {axis}", {i}, [moved if k == i else cameras[k] for k in number]
    for mistake in common_mistakes(cameras):
        kind = "convention" if mistake.focal_ratio == 1.0 else "lens"
        yield f"{kind} {mistake.what}", set(number), list(mistake.cameras)


def main() -> None:
    """Print a line for each case, and the sum of each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scene", type=Path)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("--resize")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    scene = open_scene(options.scene, calibration=options.calibration, calibration_resize=options.resize)
    pixels = PixelEvidence(scene, replace(RegisterSettings(), seed=options.seed))
    people: tuple[ViewPeople, ...] = ((),) * scene.num_views
    if is_fetched() and len(pixels.instants) >= MIN_COMMON:
        people = pixels.people
        print("clocks", check_clocks(scene.view_names, people, pixels.lenses, scene.times, pixels.instants))
    textures = [StoredTexture(pixels, kind, is_quick=True) for kind in texture_kinds()]
    report(scene.view_names, calibrated_cameras(pixels), people, textures)


def report(
    names: tuple[str, ...],
    cameras: tuple[RigCamera, ...],
    people: tuple[ViewPeople, ...],
    textures: Sequence[TextureSource],
) -> None:
    """Print the result of every case: views at fault exactly, among those that are named, not named, or others."""
    sums: dict[str, dict[str, int]] = {}
    for label, wrong, given in cases(list(cameras)):
        begin = time.process_time()
        found = check_calibration(names, given, people, textures)
        named = {names.index(name) for finding in found.findings for name in finding.views}
        result = "exactly" if named == wrong else "among" if named > wrong else "others" if named else "silent"
        if not wrong:
            result = "accused" if named else "right"
        kind = label.split()[0]
        sums.setdefault(kind, {})[result] = sums.get(kind, {}).get(result, 0) + 1
        texts = [finding.text for finding in found.findings] or [found.verdict]
        print(f"{label}: {result} ({time.process_time() - begin:.1f} s)", *texts, flush=True)
    for kind, counts in sums.items():
        print(kind, *(f"{count} {result}" for result, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
