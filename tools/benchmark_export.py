"""Measure size, time and peak memory of every export format and of the HTML page, each in a process of its own.

    python tools/benchmark_export.py --out OUT --scene SCENE          # a run that exists
    python tools/benchmark_export.py --instants 6,24 --side 500       # made runs of 4 views with side x side points

Memory that does not grow with the number of instants shows as equal figures for 6 and 24 instants.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

CHILD = """
import json, os, sys, time
from pathlib import Path
from page4d import export, open_output
from page4d.options import ExportSettings
out, scene, name, target, options = sys.argv[1:6]

def run_export():
    given = {"scene": Path(scene)} if scene else {}
    record = export(out, name, target, **given, **json.loads(options))[0].record
    return record.bytes, record.files, record.points

def run_page():
    from page4d.viewer.content import viewer_content
    from page4d.viewer.recording import record_page
    from page4d.viewer.scene import Thumbnails
    output = open_output(out)
    content = viewer_content(output, ExportSettings(), is_page=True)
    page = record_page(content, Thumbnails(content, output.pictures(scene)))
    return Path(target).write_bytes(page), 1, sum(content.num_points)

start, used = time.perf_counter(), time.process_time()
size, files, points = run_page() if name == "PAGE" else run_export()
seconds, used = time.perf_counter() - start, time.process_time() - used
status = Path("/proc/self/status").read_text()  # ru_maxrss counts the parent, too
peak = 1024 * int(status.split("VmHWM:")[1].split()[0])
print(json.dumps([seconds, used, peak, size, files, points]))
"""

PAGE = "view --html"


def measure(out: Path, scene: Path | None, name: str, **options: object) -> list[float]:
    """Return seconds, CPU seconds, peak memory, bytes, files and points of one export in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "export"
        code = CHILD.replace("PAGE", PAGE)
        command = [sys.executable, "-c", code, str(out), str(scene or ""), name, str(target), json.dumps(options)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    return list(json.loads(done.stdout.splitlines()[-1]))


def rows_for(out: Path, scene: Path, *, all_points: bool) -> None:
    """Print one row per format, and one for the page."""
    from page4d.exporters.formats import FORMATS, PictureUse
    from page4d.output.reader import open_output

    has_velocity = open_output(out).has_velocity
    header = f"{'format':20} {'seconds':>8} {'CPU s':>7} {'peak MB':>8} {'MB':>8} {'files':>6} {'points':>12}"
    print(header)
    for name in (*FORMATS, PAGE):
        format = FORMATS.get(name)
        if format is not None and format.needs_velocity and not has_velocity:
            continue
        pictures = None if format is not None and format.pictures is PictureUse.NONE else scene
        options = {"max_points": 0} if all_points and format is not None and format.point_bytes else {}
        seconds, used, peak, size, files, points = measure(out, pictures, name, **options)
        print(
            f"{name:20} {seconds:8.1f} {used:7.1f} {peak / 1e6:8.0f} {size / 1e6:8.1f} {files:6.0f} {points:12,.0f}",
            flush=True,
        )


def main() -> None:
    """Measure an existing run, or made ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--scene", type=Path)
    parser.add_argument("--instants", default="6,24")
    parser.add_argument("--side", type=int, default=500)
    parser.add_argument("--all-points", action="store_true", help="export all points, whatever the format's default")
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if given.out is not None:
        rows_for(given.out, given.scene, all_points=given.all_points)
        return
    from tests.exporters.capture import make_capture

    for number in map(int, given.instants.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            size, numbers = (given.side, given.side), tuple(range(number))
            made = make_capture(Path(folder), numbers=numbers, size=size, velocity=True)
            print(f"\n{number} instants, 4 views of {given.side}x{given.side} px")
            rows_for(made.folder, made.scene, all_points=given.all_points)


if __name__ == "__main__":
    main()
