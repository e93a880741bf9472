"""Measures on synthetic captures whether cameras are found to be static or moving.

    python tools/measure_camera_motion.py --captures 20

Each seed gives three captures: static cameras, moving ones with a rolling shutter, and one moving among static ones;
exposure, colour, noise and sharpness vary between cameras. `tests/rig/test_camera_motion.py` has simulated pictures.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from page4d.rig.camera_motion import measure_camera_motion
from page4d.rig.samples import sample_views
from page4d.scene.open import open_scene


def synthesize(seed: int, out: Path, *options: str) -> Path:
    """Render a capture of three views and return the folder of its videos."""
    size = ("--size", "320x240", "--frames", "24", "--views", "3", "--supersample", "1", "--photometric")
    command = [sys.executable, "-m", "page4d_cli", "synthesize", "--seed", str(seed), "--out", str(out), "--quiet"]
    subprocess.run([*command, *size, *options], check=True, cwd=ROOT)
    return out


def judged(folder: Path) -> list[str]:
    """Return static, moving or undetermined for every view."""
    scene = open_scene(folder)
    found = measure_camera_motion(scene, sample_views(scene))
    return ["undetermined" if one.is_static is None else "static" if one.is_static else "moving" for one in found]


def main() -> None:
    """Print how often each kind of view is judged how."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--captures", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=500)
    options = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    right: Counter[str] = Counter()
    for seed in range(options.first_seed, options.first_seed + options.captures):
        with tempfile.TemporaryDirectory() as place:
            static = synthesize(seed, Path(place) / "static")
            moving = synthesize(seed, Path(place) / "moving", "--moving-cameras", "--readout", "20")
            truth = {"static": ["static"] * 3, "moving": ["moving"] * 3, "mixed": ["moving", "static", "static"]}
            for kind, folder in (("static", static), ("moving", moving), ("mixed", static)):
                if kind == "mixed":
                    first = sorted(static.glob("*.mp4"))[0].name
                    shutil.copy(moving / first, static / first)
                found = judged(folder)
                counts.update((f"{kind}, {true}", one) for true, one in zip(truth[kind], found, strict=True))
                right[kind] += found == truth[kind]
                print(seed, kind, *found, flush=True)
    for (kind, found), number in sorted(counts.items()):
        print(f"{kind:16} judged {found:14} {number}")
    for kind, number in right.items():
        print(f"{kind}: all views right in {number} of {options.captures} captures")


if __name__ == "__main__":
    main()
