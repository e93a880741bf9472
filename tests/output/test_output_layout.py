"""File names of views, and paths inside the output folder."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from page4d.errors import OutputError, UsageError
from page4d.output.layout import OUTPUT_FILES, SAFE_NAME, OutputLayout, is_own_file, safe_names

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


@settings(deadline=None)
@given(names=st.lists(ANY_TEXT | HOSTILE, min_size=1, max_size=3, unique=True))
def test_every_path_stays_inside_the_folder(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    for path in paths_of(OutputLayout(folder, tuple(names)), 3):
        assert path.resolve().is_relative_to(folder.resolve())
        assert path != folder


def paths_of(layout: OutputLayout, index: int) -> list[Path]:
    """Return the paths of every kind, per view at one index."""
    found = []
    for kind in OUTPUT_FILES:
        path = getattr(layout, kind)
        if isinstance(path, Path):
            found.append(path)
        elif "{view}" not in OUTPUT_FILES[kind].pattern:
            found.append(path(index))
        else:
            before = (index,) if "{index" in OUTPUT_FILES[kind].pattern else ()
            found += [path(*before, view) for view in layout.view_names]
    return found


def test_safe_names_are_kept_and_collisions_are_numbered() -> None:
    assert safe_names(["CON", "aux", "Aux", "nul.left", "LPT9.", "cam.", "cam", "com10", "COM\u00b9", "con_"]) == (
        *("CON_2", "aux_2", "Aux_3", "nul_left", "LPT9_2", "cam", "cam_2", "com10", "COM1_2", "con_"),
    )
    assert safe_names(["cam01", "a b", "a_b", "A_B", "a_b_2"]) == ("cam01", "a_b", "a_b_2", "A_B_3", "a_b_2_2")
    hostile = safe_names(["../../x", "caméra", ".hidden", "-rf", "日本", ""])
    assert hostile == ("_.._x", "camera", "hidden", "_rf", "__", "view")
    long = safe_names(["x" * 80, "x" * 70])
    assert [len(name) for name in long] == [64, 64]
    assert long[1].endswith("_2")


def test_paths_follow_the_table_and_the_docs_describe_them(tmp_path: Path) -> None:
    layout = OutputLayout(tmp_path, ("a b", "c"))
    names = [path.relative_to(tmp_path).as_posix() for path in paths_of(layout, 1234567)]
    expected = "run.json cameras/a_b.tum points/moving/frame_1234567.ply dynamic/c/frame_1234567.png"
    assert {*names} >= {*expected.split()}
    assert all(is_own_file(name) for name in names)
    assert not any(
        is_own_file(name) for name in ("points/moving/static.ply", "points/moving", "depth/frame_000000.png")
    )
    planned = [name for row in OUTPUT_FILES.values() for name in row.names(layout.file_names, 2)]
    assert {path.relative_to(tmp_path).as_posix() for index in (0, 1) for path in paths_of(layout, index)} == {
        *planned
    }
    assert len(planned) == len({*planned})
    docs = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    described = re.findall(r"^(\S+)  ", docs.partition("## Output folder")[2].split("```")[1], re.MULTILINE)
    assert described == [row.pattern.format(view="<view>", index=0) for row in OUTPUT_FILES.values()]


def test_a_symbolic_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "depth").symlink_to(tmp_path / "elsewhere")
    layout = OutputLayout(folder, ("cam",))
    with pytest.raises(OutputError, match="leads outside"):
        layout.depth(0, "cam")
    with pytest.raises(OutputError, match="leads outside"):
        layout.path("preview/../../x")


def test_equal_names_and_unknown_views_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="same name"):
        OutputLayout(tmp_path, ("a", "a"))
    with pytest.raises(UsageError, match="no view is called 'z'"):
        OutputLayout(tmp_path, ("a", "b")).depth(0, "z")
