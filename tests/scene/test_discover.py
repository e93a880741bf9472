"""Views of a scene folder, their order, and notices about ignored entries."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from page4d.errors import InputError, Level, UsageError
from page4d.io.input_files import natural_key
from page4d.scene.discover import discover, select_views
from page4d.scene.open import open_scene
from tests.scene.clip_writers import counter_clip, write_counter_clip, write_images, write_video


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def names(folder: Path) -> list[str]:
    return [candidate.name for candidate in discover(folder).candidates]


def ignored(folder: Path) -> dict[str, Level]:
    return {notice.text: notice.level for notice in discover(folder).notices}


def test_views_are_in_natural_order(tmp_path):
    touch(tmp_path, "cam10.mp4", "cam2.MP4", "cam1.mov", "Cam3.mkv", "cam4/0.png", "cam4/1.png", "a b.webm", "ü.avi")
    assert names(tmp_path) == ["a b", "cam1", "cam2", "Cam3", "cam4", "cam10", "ü"]


def test_other_entries_are_ignored_with_a_reason(tmp_path):
    touch(tmp_path, "introduction.xml", "intro.json", "settings.json", "intr_1.xml", "setting3.json", "calib.npz")
    touch(tmp_path, "cam1.mp4", ".cam2.mp4", "notes.txt", "Calib.toml", "x.qca.txt", "transforms.json", "sync.json")
    below = "masks/cam1/0.png truth/0.png sparse/0/cameras.bin empty/readme.md c.mp4/x.txt"
    touch(tmp_path, "cameras.txt", *below.split())
    assert names(tmp_path) == ["cam1"]
    found = ignored(tmp_path)
    assert found["ignored .cam2.mp4: hidden"] is Level.INFO
    others = ("intro.json", "introduction.xml", "notes.txt", "settings.json")
    assert found[f"ignored {', '.join(others)}: not a video"] is Level.INFO
    assert found["ignored masks: masks, read with masks"] is Level.INFO
    assert found["ignored empty: a folder without images"] is Level.INFO
    assert found["ignored c.mp4: a folder without images"] is Level.WARNING
    (reported,) = (text for text in found if "possibly a calibration; pass calibration=FILE" in text)
    assert found[reported] is Level.WARNING
    assert {"Calib.toml", "cameras.txt", "intr_1.xml", "setting3.json", "calib.npz"} <= set(
        reported.removeprefix("ignored ").split(":")[0].split(", ")
    )
    (other,) = (one for one in discover(tmp_path, tmp_path / "cameras.txt").notices if "another" in one.text)
    assert other.level is Level.INFO
    assert "Calib.toml" in other.text
    assert "cameras.txt" not in other.text
    assert discover(tmp_path).sync_file == tmp_path / "sync.json"


@pytest.mark.parametrize(
    ("name", "content", "level"),
    [
        ("charuco.toml", 'columns = 4\nrows = 5\nunits = "inch"\n', Level.INFO),  # a board of Caliscope
        ("Config.toml", '[project]\nframe_rate = "auto"\n[calibration]\ncalibration_type = "convert"\n', Level.INFO),
        ("aprilgrid.yaml", "target_type: aprilgrid\ntagCols: 6\ntagSize: 0.088\n", Level.INFO),
        ("rig.toml", "[cam1]\nmatrix = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]\n", Level.WARNING),
        ("offset_cams.toml", "[cam1]\nmatrix = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]\n", Level.WARNING),
        ("cut.toml", "[cam1\n", Level.WARNING),
    ],
)
def test_documents_without_a_camera_are_not_taken_for_calibrations(
    tmp_path, monkeypatch, name: str, content: str, level: Level
):
    touch(tmp_path, "cam1.mp4")
    (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    ((text, found),) = ignored(tmp_path).items()
    assert (found, "possibly a calibration" in text) == (level, level is Level.WARNING)


def test_one_of_two_sync_files_is_used_and_reported(tmp_path):
    touch(tmp_path, "cam1.mp4", "Sync.JSON", "sync.toml", "cam1_timestamps.csv")
    assert discover(tmp_path).sync_file == tmp_path / "Sync.JSON"
    assert "ignored sync.toml, cam1_timestamps.csv: Sync.JSON is used" in ignored(tmp_path)


def test_files_named_as_clocks_are_reported_unless_they_are_in_use(tmp_path):
    touch(tmp_path, "cam1.mp4", "sync.json.txt", "time_offsets.csv", "syncopated.txt")
    notice = (
        "ignored sync.json.txt, time_offsets.csv: possibly clocks of the views, not read; write them as sync.json"
    )
    assert ignored(tmp_path)[notice] is Level.WARNING
    found = discover(tmp_path, sync=str(tmp_path / "sync.json.txt")).notices
    assert notice.replace("sync.json.txt, ", "") in [one.text for one in found]
    touch(tmp_path, "sync.json")
    assert ignored(tmp_path)["ignored sync.json.txt, time_offsets.csv: sync.json is used"] is Level.INFO


def test_repeated_names_keep_their_suffix(tmp_path):
    touch(tmp_path, "cam1.mp4", "cam1.mov", "cam2.mp4", "cam3/0.png", "cam3.mp4")
    assert names(tmp_path) == ["cam1.mov", "cam1.mp4", "cam2", "cam3"]


def test_views_are_selected_by_number_or_name(tmp_path):
    touch(tmp_path, *(f"cam{n}.mp4" for n in range(1, 5)))
    found = discover(tmp_path)
    first, notices = select_views(found, 2, tmp_path)
    assert [view.name for view in first] == ["cam1", "cam2"]
    assert notices[0].text == "using 2 of 4 videos: cam1.mp4, cam2.mp4; not used: cam3.mp4, cam4.mp4"
    assert select_views(found, 4, tmp_path)[1] == ()
    named, _ = select_views(found, ("cam3", "cam1"), tmp_path)
    assert [view.name for view in named] == ["cam3", "cam1"]
    with pytest.raises(UsageError, match="no view is called 'cam9'"):
        select_views(found, ("cam9",), tmp_path)
    with pytest.raises(UsageError, match="views contains a view twice"):
        select_views(found, ("cam1", "cam1"), tmp_path)
    with pytest.raises(InputError, match="has 4 videos"):
        select_views(found, 5, tmp_path)


def test_folders_without_videos_are_refused(tmp_path):
    with pytest.raises(InputError, match="no videos in"):
        discover(tmp_path)
    write_images(tmp_path, {f"{n}.png": frame for n, frame in enumerate(counter_clip(range(3)))})
    with pytest.raises(InputError) as caught:
        discover(tmp_path)
    assert "it contains 3 images" in caught.value.hint
    with pytest.raises(UsageError, match="does not exist"):
        discover(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is a file"):
        discover(tmp_path / "0.png")
    touch(tmp_path / "raw", "a/1.HEIC", "a/2.HEIC", "b/1.HEIC", "c.insv", "notes.txt")
    with pytest.raises(InputError) as caught:
        discover(tmp_path / "raw")
    assert "; ignored c.insv: a video of a format that is not read; convert it to MP4" in caught.value.message
    assert "; ignored a, b: a folder of heic files, which are not read; convert them to PNG" in caught.value.message
    assert "notes" not in caught.value.message


def test_a_subfolder_with_the_videos_is_named(tmp_path):
    touch(tmp_path, *"readme.md calib/extri.yml two/a.mp4 two/b.mov videos/a.mp4 videos/b/0.png".split())
    touch(tmp_path, *"videos/b/1.png videos/c.mkv videos/notes.txt .trash/x.mp4 masks/a.mp4 masks/b.mp4".split())
    with pytest.raises(InputError) as caught:
        discover(tmp_path)
    found = f"'{tmp_path / 'videos'}' has 3, two 2"
    assert caught.value.message == f"no videos of cameras in '{tmp_path}', but {found}"
    assert caught.value.hint.startswith(f"give the folder '{tmp_path / 'videos'}', or put one recording of every")


def test_copies_of_image_folders_are_reported_in_one_line(tmp_path):
    for name in ("a", "b", "c"):
        write_images(tmp_path / name, {f"{n}.png": frame for n, frame in enumerate(counter_clip(range(3)))})
    (tmp_path / "l").symlink_to("a")
    write_images(tmp_path / "z", {f"{n}.png": frame for n, frame in enumerate(counter_clip([0, 9, 2]))})
    texts = [notice.text for notice in open_scene(tmp_path).notices]
    assert "a/ and b/ and c/ and l/ are the same images" in texts
    assert not any("z/" in text and "same" in text for text in texts)


def test_a_common_beginning_is_not_a_copy(tmp_path):
    """Uncompressed recordings have equal sizes, and may begin with a black frame each."""
    black = [np.zeros((512, 1024, 3), np.uint8)] * 2
    for name, last in (("a", 0), ("b", 200)):
        frames = [*black, np.full((512, 1024, 3), last, np.uint8)]
        write_video(tmp_path / f"{name}.y4m", frames, codec="wrapped_avframe")
    assert not any("same" in notice.text for notice in open_scene(tmp_path).notices)


def test_videos_and_image_folders_are_combined(tmp_path):
    write_counter_clip(tmp_path / "a.mp4", 12)
    write_images(tmp_path / "b", {f"{n + 40:03}.png": frame for n, frame in enumerate(counter_clip(range(12)))})
    scene = open_scene(tmp_path, image_fps=30)
    assert [view.indices for view in scene.views] == [tuple(range(12))] * 2


@given(st.lists(st.text("aAz_.é019²٣", max_size=8), unique=True))
def test_natural_order_is_a_total_order(texts: list[str]):
    ordered = sorted(texts, key=natural_key)
    backwards = texts[::-1]
    assert sorted(backwards, key=natural_key) == ordered
    assert sorted([f"cam{n}" for n in (10, 9, 1, 2, 100)], key=natural_key) == [f"cam{n}" for n in (1, 2, 9, 10, 100)]


def test_decomposed_and_composed_names_are_the_same(tmp_path):
    """Some systems store "é" as two characters: names that look equal must be equal."""
    written, typed = "came\u0301", "cam\u00e9"
    (tmp_path / "scene").mkdir()
    write_counter_clip(tmp_path / "scene" / f"{written}.mp4", 3)
    write_images(tmp_path / "masks" / written, {f"{i}.png": counter_clip([5])[0] for i in range(3)})
    (tmp_path / "scene" / "sync.json").write_text(f'{{"views": {{"{written}": {{"offset_s": 1.5}}}}}}')
    for selected in (typed, written):
        scene = open_scene(tmp_path / "scene", views=(selected,), masks=tmp_path / "masks")
        assert scene.view_names == (typed,)
        assert scene.views[0].clock.offset_s == 1.5
        assert scene.views[0].mask is not None


def test_names_that_differ_only_in_composition_are_kept_apart(tmp_path):
    touch(tmp_path, "cam\u00e9.mp4", "came\u0301.mp4")
    assert len(set(names(tmp_path))) == 2


def test_masks_of_a_longer_name_are_not_taken(tmp_path):
    for name in ("scene", "masks"):
        (tmp_path / name).mkdir()
    write_counter_clip(tmp_path / "scene" / "cam.mp4", 3)
    write_counter_clip(tmp_path / "masks" / "cam.left.mp4", 3)
    with pytest.raises(UsageError, match="no masks"):
        open_scene(tmp_path / "scene", masks=tmp_path / "masks")


def test_the_result_of_a_run_is_no_scene(tmp_path):
    """Its depth and confidence maps are folders of images, but no footage."""
    touch(tmp_path, "run.json", "depth/cam1/frame_000000.png", "confidence/cam1/frame_000000.png")
    with pytest.raises(InputError, match="is the result of a run, not a scene"):
        discover(tmp_path)


@pytest.mark.parametrize(
    ("files", "level", "found"),
    [
        (
            "@eaDir/0.jpg lost+found/0.png __MACOSX/0.png $RECYCLE.BIN/0.png",
            Level.INFO,
            ["$RECYCLE.BIN, @eaDir, __MACOSX, lost+found: a folder of the operating system"],
        ),
        (
            "a/0.HEIC a/1.HEIC",
            Level.WARNING,
            ["a: a folder of heic files, which are not read; convert them to PNG or JPEG"],
        ),
        ("room/cam01.MP4", Level.WARNING, ["room: a folder of 1 video; to use it, give it as the scene"]),
        (
            "a.mp4.crdownload b.MP4.part c.vob notes.tmp cam1.mp4.json",
            Level.WARNING,
            [
                "a.mp4.crdownload, b.MP4.part: an unfinished download or copy of a video",
                "c.vob: a video of a format that is not read; convert it to MP4 or MKV",
            ],
        ),
    ],
)
def test_entries_that_are_no_views_are_reported(files: str, level: Level, found: list[str], tmp_path):
    touch(tmp_path, "cam1.mp4", *files.split())
    assert names(tmp_path) == ["cam1"]
    assert [text for text, each in ignored(tmp_path).items() if each is level] == [
        f"ignored {text}" for text in found
    ]
