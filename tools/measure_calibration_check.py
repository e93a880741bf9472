"""Table of the calibration check: a right calibration with cameras swapped, turned and made equal.

    python tools/measure_calibration_check.py keypoints.pkl SCENE CALIBRATION [crop-center|scale]

The pickle has a tuple of `ViewPeople` under "people", in undistorted original pixels.
"""

import pickle
import sys
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation

from page4d.rig.calibration_check import calibrated_cameras, check_calibration
from page4d.rig.evidence import PixelEvidence
from page4d.rig.records import RigCamera
from page4d.scene.open import open_scene


def cases(cameras: list[RigCamera]) -> list[tuple[str, set[int], list[RigCamera]]]:
    """Return labels, the views at fault, and the cameras."""
    number = range(len(cameras))
    found: list[tuple[str, set[int], list[RigCamera]]] = [("right", set(), cameras)]
    for i, j in combinations(number, 2):
        order = {i: j, j: i}
        found.append((f"swap {i + 1} {j + 1}", {i, j}, [cameras[order.get(k, k)] for k in number]))
    for i, j in permutations(number, 2):
        found.append((f"copy {j + 1} to {i + 1}", {i, j}, [cameras[j if k == i else k] for k in number]))
    for i in number:
        for angle in (10, 20):
            for axis in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (0.7, 0.7, 0)):
                turn = Rotation.from_rotvec(np.radians(angle) * np.array(axis)).as_matrix()
                moved = cameras[i].placed(turn @ cameras[i].rotation, cameras[i].center)
                found.append((f"turn {i + 1} {angle} {axis}", {i}, [moved if k == i else cameras[k] for k in number]))
    return found


def main() -> None:
    """Print a line for each case."""
    keypoints, folder, calibration, *resize = sys.argv[1:]
    people = pickle.loads(Path(keypoints).read_bytes())["people"]
    scene = open_scene(folder, calibration=Path(calibration), calibration_resize=resize[0] if resize else None)
    given = calibrated_cameras(PixelEvidence(scene))
    named = total = 0
    for label, wrong, cameras in cases(list(given)):
        report = check_calibration(scene.view_names, cameras, people)
        views = {scene.view_names.index(name) for finding in report.findings for name in finding.views}
        named, total = named + (views == wrong), total + 1
        print(label, "ok" if views == wrong else "WRONG", *(finding.text for finding in report.findings), flush=True)
    print(f"{named} of {total} right")


if __name__ == "__main__":
    main()
