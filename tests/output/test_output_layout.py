"""File names of views, and paths inside the output folder."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from page4d.errors import OutputError, UsageError
from page4d.output.layout import SAFE_NAME, OutputLayout, is_own_file, safe_names

ANY_TEXT = st.text(alphabet=st.characters(), max_size=100)
HOSTILE = st.sampled_from(["", ".", "..", "../../x", "/etc/passwd", "a/b", "-rf", "a\nb", "a\0b", "con", "é" * 90])


@given(st.lists(ANY_TEXT | HOSTILE, max_size=12))
def test_any_view_names_have_distinct_safe_file_names(names: list[str]) -> None:
    cleaned = safe_names(names)
    assert len(cleaned) == len(names)
    assert len({name.casefold() for name in cleaned}) == len(names)
    for name in cleaned:
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name)
        assert re.match(SAFE_NAME, name)


@given(names=st.lists(ANY_TEXT | HOSTILE, min_size=1, max_size=6, unique=True))
def test_every_path_stays_inside_the_folder(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    layout = OutputLayout(folder, tuple(names))
    for view in names:
        paths = [layout.tum(view), layout.open3d_trajectory(view), layout.depth(3, view), layout.confidence(3, view)]
        for path in [*paths, layout.dynamic(3, view), layout.points(3), layout.run, layout.cameras]:
            assert path.resolve().is_relative_to(folder.resolve())
            assert path != folder


def test_safe_names_are_kept_and_collisions_are_numbered() -> None:
    assert safe_names(["cam01", "a b", "a_b", "A_B", "a_b_2"]) == ("cam01", "a_b", "a_b_2", "A_B_3", "a_b_2_2")
    assert safe_names(["../../x", "caméra", ".hidden", "-rf", "日本", ""]) == (
        "_.._x",
        "camera",
        "hidden",
        "_rf",
        "__",
        "view",
    )
    long = safe_names(["x" * 80, "x" * 70])
    assert [len(name) for name in long] == [64, 64]
    assert long[1].endswith("_2")


def test_paths_follow_the_output_contract(tmp_path: Path) -> None:
    layout = OutputLayout(tmp_path, ("a b", "c"))
    paths = [
        *(layout.run, layout.cameras, layout.tum("a b"), layout.open3d_trajectory("c"), layout.points(0)),
        *(layout.depth(1, "a b"), layout.confidence(12, "c"), layout.dynamic(1234567, "c")),
        *(layout.preview("contact_sheet.png"), layout.state("chunk_00000.json")),
        *(layout.static_points, layout.moving_points(2), layout.static_mesh, layout.moving_mesh(2)),
    ]
    assert [str(path.relative_to(tmp_path)) for path in paths] == [
        *("run.json", "cameras.json", "cameras/a_b.tum", "cameras/c.open3d.json", "points/frame_000000.ply"),
        *("depth/a_b/frame_000001.png", "confidence/c/frame_000012.png", "dynamic/c/frame_1234567.png"),
        *("preview/contact_sheet.png", "state/chunk_00000.json"),
        *("points/static.ply", "points/moving/frame_000002.ply", "mesh/static.ply", "mesh/moving/frame_000002.ply"),
    ]
    assert all(is_own_file(path.relative_to(tmp_path).as_posix()) for path in paths)
    assert not is_own_file("points/moving/static.ply")
    assert not is_own_file("points/moving")


def test_a_symbolic_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "depth").symlink_to(tmp_path / "elsewhere")
    layout = OutputLayout(folder, ("cam",))
    with pytest.raises(OutputError, match="leads outside"):
        layout.depth(0, "cam")
    with pytest.raises(OutputError, match="leads outside"):
        layout.preview("../../x")


def test_equal_names_and_unknown_views_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="same name"):
        OutputLayout(tmp_path, ("a", "a"))
    with pytest.raises(UsageError, match="1 file names for 2 views"):
        OutputLayout(tmp_path, ("a", "b"), ("a",))
    with pytest.raises(UsageError, match="no view is called 'z'"):
        OutputLayout(tmp_path, ("a", "b")).depth(0, "z")
