"""A resumed run has the bytes of an uninterrupted one, or is refused, whatever happened to its folder."""

import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from page4d.choices import ExistingOutput
from page4d.errors import InterruptedRunError, OutputError, Page4DError, Stopped, UsageError, WeightsError
from page4d.io.atomic import part_name
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.networks.conditioning import Memory
from page4d.networks.layers.execution import on_threads
from page4d.options import ReconstructSettings
from page4d.output.layout import OUTPUT_FILES, OutputLayout, is_own_file
from page4d.output.reader import open_output
from page4d.run import fingerprint
from page4d.run.bounded_queue import BoundedQueue
from page4d.run.predictor import PredictedChunk
from page4d.run.reconstruct import reconstruct
from page4d.run.state import StateFolder, check_disk, is_occupied
from page4d.scene.batches import FrameBatch
from tests.fuzzing import fuzz, mutated_bytes, places_of, read_or_refuse
from tests.run.truth import TruthPredictor

CAPTURE = SyntheticCapture(seed=5, num_views=2, num_times=5, image_size=(12, 16))
SETTINGS = ReconstructSettings(chunk=2, overlap=1, preview=False, check_calibration=False)
NUM_CHUNKS = 4
HOSTILE = (b"nan", b"NaN", b"-1", b"0", b"1e308", b"9" * 400, b"true", b"null", b'""', b"[]", b"{}", b"\xff", b"\0")
VALUES = (None, True, -1, 0, 3, 1e308, "", "x", "../../x", "/etc/x", [], {}, [[]], [1, 2], {"name": "../x"})

FAILURES = (2, 3, 5)
"""Exit codes of a run in a damaged folder."""

Edit = Callable[[Path], None]


class Remembering(TruthPredictor):
    """The truth, with a confidence that depends on the memory of the chunk before."""

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> PredictedChunk:
        found = super().predict(batch, memory)
        seen = torch.zeros(1) if memory is None else memory["seen"]
        confidence = torch.full_like(found.predictions.depth_confidence, 0.1 + 0.1 * float(seen))
        predictions = replace(found.predictions, depth_confidence=confidence)
        return found._replace(predictions=predictions, memory={"seen": seen + 1})


def run(out: Path, existing: ExistingOutput = ExistingOutput.RESUME, **options: Any) -> list[tuple[int, int]]:
    """Run or resume, and return the instants of the predicted chunks."""
    predictor = Remembering(CAPTURE, **options)
    reconstruct(CAPTURE.scene(), predictor, out=out, settings=SETTINGS, existing=existing)
    return predictor.calls


def stop_at(time: int, error: Exception) -> Callable[[int, Any], Any]:
    def disturb(start: int, predictions: Any) -> Any:
        if start >= time:
            raise error
        return predictions

    return disturb


def contents(out: Path) -> dict[str, bytes]:
    """Return every file by name, records without run times, memory and the hashes of these."""
    files = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for name in [name for name in files if name == "run.json" or re.fullmatch(r"state/.*\.json", name)]:
        document = json.loads(files[name])
        for key in ("timings", "predicted_peak_memory_bytes", "peak_memory_bytes", "seconds", "sha256"):
            document.pop(key, None)
        (document.get("calibration_check") or {}).pop("seconds", None)
        document["other_files"] = [file for file in document.get("other_files", []) if file["name"] != "run.json"]
        for chunk in [*document.get("chunks", []), document.get("record", {})]:
            chunk.pop("seconds", None)
        files[name] = json.dumps(document).encode()
    return files


def seal(text: str) -> str:
    """Return a record with the right checksum."""
    body = text[: text.rindex(',\n "sha256"')]
    return f'{body},\n "sha256": "{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'


@pytest.fixture(scope="module")
def complete(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("state") / "complete"
    run(out)
    return out


@pytest.fixture(scope="module")
def whole(complete: Path) -> dict[str, bytes]:
    return contents(complete)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """The folder of a run that was interrupted after some of its chunks."""
    out = tmp_path_factory.mktemp("state") / "stopped"
    with pytest.raises(InterruptedRunError):
        run(out, disturb=stop_at(3, InterruptedRunError("interrupted")))
    assert 0 < len(list(out.glob("state/chunk_*.json"))) < NUM_CHUNKS
    return out


@pytest.fixture
def out(tmp_path, complete: Path) -> Path:
    return Path(shutil.copytree(complete, tmp_path / "out"))


def replaced(name: str, pattern: str, text: str) -> Edit:
    def edit(out: Path) -> None:
        before = (out / name).read_text()
        after = re.sub(pattern, text, before, count=1)
        assert after != before
        (out / name).write_text(after)

    return edit


def flipped(name: str) -> Edit:
    def edit(out: Path) -> None:
        content = bytearray((out / name).read_bytes())
        content[len(content) // 2] ^= 1
        (out / name).write_bytes(content)

    return edit


def linked(name: str) -> Edit:
    def edit(out: Path) -> None:
        (out / name).rename(out.parent / "elsewhere")
        (out / name).symlink_to(out.parent / "elsewhere")

    return edit


EDITS = {
    "depth scale": replaced("state/run.json", r'"depth_scale": [0-9.]+', '"depth_scale": 123.0'),
    "plan": replaced("state/run.json", r"\[\s*0,\s*2,\s*0\]", "[0, 3, 0]"),
    "warnings": replaced("state/run.json", r'"warnings": \[', '"warnings": ["x", '),
    "older version": replaced("state/run.json", r',\n "sha256": "[0-9a-f]+"', ""),
    "camera": replaced("state/chunk_00001.json", r"1\.0", "2.0"),
    "clipped depths": replaced("state/chunk_00002.json", r'"clipped_depths": \d+', '"clipped_depths": 77'),
    "cameras.json": flipped("cameras.json"),
    "run.json": replaced("run.json", r'"depth_scale": [0-9.]+', '"depth_scale": 123.0'),
    "cloud": flipped("points/frame_000002.ply"),
    "depth map": flipped("depth/cam01/frame_000004.png"),
    "memory": flipped("state/memory_00001.safetensors"),
    "deleted cloud": lambda out: (out / "points/frame_000003.ply").unlink(),
    "linked cloud": linked("points/frame_000000.ply"),
    "linked run.json": linked("run.json"),
    "torn chunk": lambda out: os.truncate(out / "state/chunk_00001.json", 100),
    "torn run": lambda out: os.truncate(out / "state/run.json", 100),
}
REFUSED = ("depth scale", "plan", "warnings", "older version", "torn run")


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_refused_or_repaired(name: str, out: Path, whole: dict[str, bytes]):
    EDITS[name](out)
    if name in REFUSED:
        with pytest.raises(UsageError, match=r"state/run\.json' is not as page4d writes it") as refused:
            run(out)
        assert "existing='overwrite'" in refused.value.hint
    else:
        run(out)
        assert contents(out) == whole
        assert not any(path.is_symlink() for path in out.rglob("*"))


def test_only_the_chunks_from_an_edited_file_on_are_repeated(out: Path, whole: dict[str, bytes]):
    assert run(out) == []
    EDITS["cloud"](out)
    assert run(out) == [(1, 3), (2, 4), (3, 5)], "and the chunk before it, which is blended"
    assert contents(out) == whole


def test_a_memory_that_no_chunk_lists_is_not_used(stopped: Path, tmp_path, whole: dict[str, bytes]):
    out = Path(shutil.copytree(stopped, tmp_path / "out"))
    shutil.copy(out / "state/memory_00000.safetensors", out / "state/memory_00002.safetensors")
    run(out)
    assert contents(out) == whole


LENSES = "1 PINHOLE 16 12 20 20 8 6\n"
IMAGES = "1 1 0 0 0 0 0 0 1 cam01.png\n\n2 1 0 0 0 0 0 1 1 cam02.png\n\n"
FILES = {
    "floor_at": ("floor.csv", {"floor.csv": "point,view,x,y"}, "point,view,y,x"),
    "tracks2d": (".", {"cam01.npz": "1", "cam02.npz": "1"}, "2"),
    "intrinsics": (".", {"sparse/0/images.txt": IMAGES, "sparse/0/cameras.txt": LENSES}, LENSES.replace("20", "21")),
}
"""The path of an option in a folder, the files there, and another text of the last one."""


def test_all_options_with_files_are_identified():
    kinds = get_type_hints(ReconstructSettings)
    assert FILES.keys() == {name for name, kind in kinds.items() if Path in get_args(kind)}


@pytest.mark.parametrize("option", FILES)
def test_files_of_options_are_identified_by_content(option: str, tmp_path):
    place, files, other = FILES[option]

    def found(name: str) -> object:
        settings = ReconstructSettings(motion=True, **{option: tmp_path / name / place})
        return fingerprint.input_fingerprint(CAPTURE.scene(), settings)[option]

    for name, text in (("first", {}), ("copy", {}), ("changed", {[*files][-1]: other})):
        for file, content in (files | text).items():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(content)
            os.utime(tmp_path / name / file, (0, 9 if name == "copy" else 0))
    (tmp_path / "copy/.DS_Store").touch()
    assert found("copy") == found("first")
    assert found("changed") != found("first")


def test_masks_and_depth_are_recorded_under_a_key_and_reported_in_words(stopped: Path, tmp_path):
    state = Path(shutil.copytree(stopped, tmp_path / "out")) / "state/run.json"
    recorded = state.read_text()
    assert recorded.count('"companions": {}') == 1
    state.write_text(seal(recorded.replace('"companions": {}', '"companions": {"cam01 mask": "0"}')))
    with pytest.raises(UsageError, match=r"differs: masks or depth\)"):
        run(state.parents[1])


def test_a_run_is_resumed_on_its_number_of_threads(stopped: Path, tmp_path, whole: dict[str, bytes]):
    """The last digits of sums depend on it."""
    out, seen, told = Path(shutil.copytree(stopped, tmp_path / "out")), [], Mock()

    def look(_: int, predictions: Any) -> Any:
        seen.append(torch.get_num_threads())
        return predictions

    before = torch.get_num_threads()
    with on_threads(before + 2):
        reconstruct(
            *(CAPTURE.scene(), Remembering(CAPTURE, disturb=look)),
            out=out,
            settings=SETTINGS,
            existing="resume",
            observer=told,
        )
        assert torch.get_num_threads() == before + 2
    assert set(seen) == {before}
    text = f"computing on {before} thread, as before the interruption, not on {before + 2}"
    assert text in [call.args[0].text for call in told.notice.call_args_list]
    assert contents(out) == whole
    assert json.loads(whole["run.json"])["threads"] == before


def test_a_signal_at_the_end_of_the_last_chunk_waits_for_the_writer(tmp_path, whole: dict[str, bytes], monkeypatch):
    """It may be raised before the end of a `with` has done anything."""
    with monkeypatch.context() as patched:
        patched.setattr(BoundedQueue, "__exit__", Mock(side_effect=Stopped(15)))
        with pytest.raises(InterruptedRunError):
            run(tmp_path / "out")
    assert "write" not in [thread.name for thread in threading.enumerate()]
    assert run(tmp_path / "out") == []
    assert contents(tmp_path / "out") == whole


def test_clouds_of_two_writers_are_not_mixed(stopped: Path, tmp_path, whole: dict[str, bytes], monkeypatch):
    out, used = Path(shutil.copytree(stopped, tmp_path / "out")), json.loads(whole["run.json"])["cloud_writer"]
    assert used == ("Open3D" if b"Created by Open3D" in whole["points/frame_000004.ply"] else "page4d")
    other = {"Open3D": "page4d", "page4d": "Open3D"}[used]
    monkeypatch.setattr("page4d.run.stages.write.cloud_writer", lambda **_: other)
    with pytest.raises(UsageError, match=f"so far were written by {used}, the others would be by {other}") as refused:
        run(out)
    assert "existing='overwrite'" in refused.value.hint


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def copied(source: Path, workplace: Path) -> Path:
    shutil.rmtree(workplace / "out", ignore_errors=True)
    return Path(shutil.copytree(source, workplace / "out", symlinks=True))


@fuzz(8)
@given(draws=st.data())
def test_a_changed_file_is_refused_or_repaired(
    draws: st.DataObject, complete: Path, stopped: Path, whole: dict[str, bytes], workplace: Path
):
    out = copied(draws.draw(st.sampled_from((complete, stopped))), workplace)
    files = sorted(path for path in out.rglob("*") if path.is_file() and path.name != ".page4d.lock")
    records = [path for path in files if path.suffix == ".json" or "memory" in path.name]
    changed = draws.draw(st.sampled_from(draws.draw(st.sampled_from((files, records)))))
    kind = draws.draw(st.sampled_from(("bytes", "bytes", "bytes", "deleted", "folder")))
    before = changed.read_bytes()
    changed.unlink()
    if kind == "bytes":
        changed.write_bytes(draws.draw(mutated_bytes(before, HOSTILE)))
    elif kind == "folder":
        changed.mkdir()
    if read_or_refuse(lambda: run(out), FAILURES) is not None:
        assert contents(out) == whole
    else:
        assert changed == out / "state/run.json" or kind == "folder"


def with_value(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = dict(document) if isinstance(document, dict) else list(document)
    copied[path[0]] = with_value(copied[path[0]], path[1:], value)
    return copied


@fuzz(5)
@given(draws=st.data())
def test_forged_records_raise_only_errors_of_page4d_and_delete_nothing_else(
    draws: st.DataObject, complete: Path, stopped: Path, workplace: Path
):
    """Records with any value, and a right checksum."""
    out = copied(draws.draw(st.sampled_from((complete, stopped))), workplace)
    kept = [workplace / "x" / "y", workplace / "empty" / "z", out / "own" / "a"]
    for folder in kept:
        folder.mkdir(parents=True, exist_ok=True)
    changed = draws.draw(st.sampled_from(sorted(out.glob("state/*.json"))))
    document = json.loads(changed.read_text())
    path = draws.draw(st.sampled_from(places_of(document)))
    forged = with_value(document, path, draws.draw(st.sampled_from(VALUES)))
    if isinstance(forged, dict):
        forged.pop("sha256", None)
        changed.write_text(seal(json.dumps(forged)[:-1] + ',\n "sha256": "0"\n}\n'))
    for existing in (ExistingOutput.RESUME, ExistingOutput.OVERWRITE):
        read_or_refuse(partial(run, out, existing), FAILURES)
    assert all(folder.is_dir() for folder in kept)


@fuzz(20)
@given(draws=st.data())
def test_a_changed_result_is_read_or_refused(draws: st.DataObject, complete: Path, workplace: Path):
    out = copied(complete, workplace)
    changed = out / draws.draw(st.sampled_from(("run.json", "run.json", "cameras.json", "points/frame_000000.ply")))
    if changed.suffix == ".json" and draws.draw(st.booleans()):
        document = json.loads(changed.read_text())
        path = draws.draw(st.sampled_from(places_of(document)))
        changed.write_text(json.dumps(with_value(document, path, draws.draw(st.sampled_from(VALUES)))))
    else:
        changed.write_bytes(draws.draw(mutated_bytes(changed.read_bytes(), HOSTILE)))

    def read() -> None:
        opened = open_output(out)
        for view in opened.view_names:
            opened.depth(0, view)
            opened.confidence(0, view)
            opened.dynamic(0, view)
            opened.intrinsics_at_maps(view)
        opened.points(0)

    read_or_refuse(read, FAILURES)


@pytest.mark.parametrize("name", ["../x/y", "x/../../y", "/etc/y", "points/../../x/y", "notes.txt", "state", "own/a"])
@pytest.mark.parametrize("record", ["state/run.json", "state/chunk_00000.json"])
def test_overwriting_refuses_records_that_name_other_files(name: str, record: str, out: Path):
    assert not is_own_file(name)
    empty = [out.parent / "x", out / "own"]
    for folder in empty:
        folder.mkdir()
    (out / "notes.txt").write_text("mine")
    text = (out / record).read_text()
    (out / record).write_text(re.sub(r'"name": "[^"]+"', f'"name": "{name}"', text, count=1))
    before = contents(out).keys()
    with pytest.raises(UsageError, match=r"is not as page4d writes it|writes no file"):
        run(out, ExistingOutput.OVERWRITE)
    assert contents(out).keys() == before
    assert all(folder.is_dir() for folder in empty)


def test_overwriting_follows_no_link_out_of_the_folder(out: Path):
    outside = out.parent / "outside"
    (out / "points").rename(outside)
    (out / "points").symlink_to(outside)
    before = sorted(outside.iterdir())
    with pytest.raises(OutputError, match="leads outside"):
        run(out, ExistingOutput.OVERWRITE)
    assert sorted(outside.iterdir()) == before
    assert (out / "cameras.json").exists(), "nothing was deleted"


def test_overwriting_leaves_the_folder_above_alone(tmp_path, complete: Path):
    """Also if the state is all that is in the folder."""
    out = tmp_path / "above" / "out"
    (out / "state").mkdir(parents=True)
    for name in ("run.json", "chunk_00000.json"):
        shutil.copy(complete / "state" / name, out / "state")
    StateFolder(OutputLayout(out, ())).remove_listed_files()
    assert list(out.iterdir()) == []
    assert out.is_dir()


def test_overwriting_leaves_no_file_of_any_kind_of_a_run_that_was_cut_off(stopped: Path, tmp_path):
    """Neither complete files that no record lists, nor partial ones, nor empty folders."""
    out, new = Path(shutil.copytree(stopped, tmp_path / "out")), tmp_path / "new"
    layout = OutputLayout(out, CAPTURE.scene().view_names)
    for kind, row in OUTPUT_FILES.items():
        for path in map(layout.path, row.names(layout.file_names, CAPTURE.num_times)):
            path.parent.mkdir(parents=True, exist_ok=True)
            part_name(path).write_bytes(b"half")
            if kind != "chunk_state" and not path.exists():
                path.write_bytes(b"whole")
    shorter = replace(CAPTURE, num_views=1, num_times=2)
    for folder, existing in ((out, ExistingOutput.OVERWRITE), (new, ExistingOutput.REFUSE)):
        reconstruct(shorter.scene(), Remembering(shorter), out=folder, settings=SETTINGS, existing=existing)
    assert contents(out) == contents(new)
    assert all(any(path.iterdir()) for path in out.rglob("*") if path.is_dir())


class TestNothingWritten:
    """A run that ended before its first file does not block the next one."""

    ERRORS = (WeightsError("bad weights"), InterruptedRunError("interrupted"), MemoryError(), RuntimeError("a bug"))

    @pytest.mark.parametrize(
        ("error", "existing"),
        [*product(ERRORS[:1], ExistingOutput), *product(ERRORS[1:], [ExistingOutput.RESUME])],
        ids=str,
    )
    def test_the_same_command_works_again(self, error, existing, tmp_path, whole):
        out = tmp_path / "out"
        with pytest.raises((Page4DError, RuntimeError)):
            run(out, ExistingOutput.REFUSE, disturb=stop_at(0, error))
        assert (out / "state" / "run.json").exists()
        (out / "points").mkdir(exist_ok=True)
        (out / "depth" / "cam01").mkdir(parents=True, exist_ok=True)
        assert not is_occupied(out)
        run(out, existing)
        assert contents(out) == whole

    @pytest.mark.parametrize("existing", [ExistingOutput.REFUSE, ExistingOutput.RESUME])
    def test_another_command_works(self, existing, tmp_path):
        out = tmp_path / "out"
        with pytest.raises(WeightsError):
            run(out, ExistingOutput.REFUSE, disturb=stop_at(0, WeightsError("bad")))
        shorter = replace(CAPTURE, num_times=3)
        reconstruct(shorter.scene(), Remembering(shorter), out=out, settings=SETTINGS, existing=existing)
        assert open_output(out).num_times == 3

    @pytest.mark.parametrize(
        "name", ["points/frame_000000.ply", "state/notes.txt", "cameras/mine/x", "run.json", "state/run.json"]
    )
    def test_any_other_file_blocks(self, name, tmp_path):
        out = tmp_path / "out"
        with pytest.raises(WeightsError):
            run(out, ExistingOutput.REFUSE, disturb=stop_at(0, WeightsError("bad")))
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine")
        assert is_occupied(out)
        with pytest.raises(UsageError, match="already holds a result"):
            run(out, ExistingOutput.REFUSE)
        assert (out / name).read_text() == "mine"


@pytest.mark.parametrize("name", ["points/frame_000000.ply", "depth/cam02/frame_000000.png", "."])
def test_files_that_vanish_during_a_run_are_no_complete_result(name: str, tmp_path, whole):
    out = tmp_path / "out"

    def disturb(start: int, predictions: Any) -> Any:
        if start == 3:
            (out / name).rename(tmp_path / "moved")
        return predictions

    # Where the chunk before is still being written, it is the folder of its files that was removed.
    with pytest.raises(OutputError, match=r"was removed or changed during the run|its folder was removed") as refused:
        run(out, ExistingOutput.REFUSE, disturb=disturb)
    assert "existing='resume'" in refused.value.hint or "its folder" in refused.value.message
    run(out)
    assert contents(out) == whole


@pytest.mark.parametrize("existing", list(ExistingOutput))
@pytest.mark.parametrize("name", ["run.json", "state", "points/frame_000000.ply"])
def test_a_file_without_the_state_of_a_run_is_refused(name, existing, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match="holds files but no record"):
        run(tmp_path, existing)
    files = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert {file: text for file, text in files.items() if file != ".page4d.lock"} == {name: "mine"}


@pytest.mark.parametrize(
    ("needed", "free", "words"),
    [
        (410_000, 300_000, r"need about 410 kB in .*, 300 kB free"),
        (4_100_000_000, 0, "need about 4.1 GB .*, 0 bytes free"),
    ],
)
def test_too_little_space_is_named_in_a_unit_that_shows_it(needed, free, words, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(OutputError, match=words):
        check_disk(tmp_path, needed)
