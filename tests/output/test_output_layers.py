"""Layers of a capture: what does not move once, and the moving points of every instant."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from page4d.errors import InputError, ShapeError, UsageError
from page4d.formats.ply import PointCloud, read_ply
from page4d.options import PointOptions
from page4d.output.instant import InstantOptions, instant_writers, write_instant, write_static
from page4d.output.layout import OutputLayout
from page4d.output.points import footprint_subset, merged_cloud, pixel_footprints, static_cloud
from page4d.output.reader import open_output
from tests.output.output_scene import background_of, export, made_capture

OPTIONS = InstantOptions(depth_scale=1000.0, writers=instant_writers(layers=True))
ALL = PointOptions(edge_angle_deg=90)


def rows(cloud: PointCloud) -> set[bytes]:
    """Return the points as bytes, to compare clouds as sets."""
    return {bytes(point) for point in np.column_stack([cloud.xyz.view(np.uint8), cloud.rgb, cloud.view[:, None]])}


@given(
    hnp.arrays(np.float32, (30, 3), elements=st.floats(-2, 2, width=32)),
    hnp.arrays(np.float32, 30, elements=st.floats(0, 1, width=32)),
    hnp.arrays(np.float64, 30, elements=st.floats(0.05, 4)),
)
def test_a_point_goes_only_where_a_finer_or_more_certain_one_is_in_its_voxel(
    xyz: NDArray[np.float32], confidence: NDArray[np.float32], footprint: NDArray[np.float64]
) -> None:
    size = 2.0 ** np.rint(np.log2(footprint))
    expected: list[int] = []
    for point in np.lexsort((np.arange(30), -confidence, size)):
        cells = np.floor(xyz[expected].astype(np.float64) / size[point])
        if not (cells == np.floor(xyz[point].astype(np.float64) / size[point])).all(axis=1).any():
            expected.append(point)
    assert footprint_subset(xyz, confidence, footprint).tolist() == sorted(expected)


def test_a_surface_that_several_views_show_is_stored_once() -> None:
    background = background_of(made_capture(1, 112))
    merged, static = merged_cloud(background, ALL), static_cloud(background, ALL)
    assert rows(static) < rows(merged)
    assert static.num_points < 0.65 * merged.num_points
    assert set(static.view) == {0, 1, 2, 3}
    # Nothing is lost: a point of the layer is within a voxel, which is up to sqrt(2) footprints wide.
    footprint = pixel_footprints(background)[0, 0][background.valid[0, 0]].numpy()
    distance, _ = cKDTree(static.xyz).query(merged.xyz)
    assert (distance <= np.sqrt(6) * footprint + 1e-6).all()


def test_a_single_view_keeps_most_of_its_points() -> None:
    alone = made_capture(1, 112, sizes=((480, 640),), names=("cam",))
    assert static_cloud(alone, ALL).num_points > 0.85 * merged_cloud(alone, ALL).num_points


def test_a_near_view_keeps_its_detail_beside_a_far_one_that_is_more_certain() -> None:
    near = made_capture(1, 112, sizes=((480, 640),), names=("near",))
    far = replace(near, depth_confidence=near.depth_confidence.clamp_min(0.9), view_names=("far",))
    factor = torch.tensor([0.25, 0.25, 1.0])[:, None]  # coarser pixels at the same place
    far = replace(far, cameras=replace(far.cameras, intrinsics=far.cameras.intrinsics * factor))
    both = replace(
        near,
        **{
            name: torch.cat([getattr(near, name), getattr(far, name)], dim=2)
            for name in ("images", "valid", "depth", "depth_confidence", "dynamic")
        },
        view_names=("near", "far"),
        pixel_transforms=near.pixel_transforms * 2,
        cameras=replace(
            near.cameras,
            world_to_camera=torch.cat([near.cameras.world_to_camera] * 2, dim=2),
            intrinsics=torch.cat([near.cameras.intrinsics, far.cameras.intrinsics], dim=2),
        ),
    )
    alone, static = static_cloud(near, ALL), static_cloud(both, ALL)
    assert (static.view == 0).sum() == alone.num_points


@pytest.mark.usefixtures("open3d")
def test_the_static_layer_passes_the_filters_of_a_cloud() -> None:
    background = background_of(made_capture(1, 112))
    certain = static_cloud(background, PointOptions(min_confidence=0.5))
    assert certain.num_points > 0
    assert certain.confidence.min() >= 0.5
    assert static_cloud(background, PointOptions(voxel_size=0.2)).num_points < certain.num_points / 2
    assert static_cloud(background, PointOptions(max_points=100)).num_points == 100
    with_normals = static_cloud(background, PointOptions(normals=True, outliers=True)).normals
    assert with_normals is not None


def test_layers_are_read_back_and_the_moving_one_is_the_moving_part_of_the_merged_cloud(tmp_path: Path) -> None:
    written = export(tmp_path, made_capture(2, 112), layers=True)
    output = open_output(tmp_path)
    assert output.has_layers
    assert output.static_points().num_points == output.run.layers.static_points > 0
    merged = [output.points(index) for index in range(2)]
    assert written.num_points == sum(cloud.num_points for cloud in merged)  # moving points do not count twice
    for index, cloud in enumerate(merged):
        moving = output.moving_points(index)
        assert rows(moving) == rows(cloud[cloud.dynamic != 0])
        assert 0 < moving.num_points < cloud.num_points
        assert output.layout.moving_points(index) in [file.path for file in written.files]
    with pytest.raises(UsageError, match="no instant 2"):
        output.moving_points(2)


def test_both_layers_together_are_the_merged_points_up_to_thinning(tmp_path: Path) -> None:
    instant = made_capture(1, 112)
    layout = OutputLayout(tmp_path, instant.view_names)
    files = write_static(layout, background_of(instant), OPTIONS)
    write_instant(layout, 0, instant, OPTIONS)
    static, moving, merged = (
        read_ply(path) for path in (layout.static_points, layout.moving_points(0), layout.points(0))
    )
    assert files.num_points == static.num_points
    assert not static.dynamic.any()
    assert rows(moving) | rows(static) < rows(merged)
    footprint = pixel_footprints(instant)[0, 0][instant.valid[0, 0]].max()
    distance, _ = cKDTree(np.concatenate([static.xyz, moving.xyz])).query(merged.xyz)
    assert distance.max() <= np.sqrt(6) * footprint


def test_layers_without_a_point_are_valid_files(tmp_path: Path) -> None:
    instant = made_capture(1, 112)
    layout = OutputLayout(tmp_path, instant.view_names)
    nothing = replace(instant, valid=torch.zeros_like(instant.valid), dynamic=None)
    assert write_static(layout, nothing, OPTIONS).num_points == 0
    write_instant(layout, 0, replace(instant, dynamic=None), OPTIONS)
    assert read_ply(layout.static_points).num_points == read_ply(layout.moving_points(0)).num_points == 0


def test_moving_points_of_a_run_without_layers_are_those_of_its_merged_clouds(tmp_path: Path) -> None:
    for layers in (False, True):
        export(tmp_path / str(layers), made_capture(2, 112), layers=layers)
    plain, layered = (open_output(tmp_path / str(layers)) for layers in (False, True))
    assert not plain.has_layers
    assert rows(plain.moving_points(1)) == rows(layered.moving_points(1))
    with pytest.raises(UsageError, match="no static points of all instants") as caught:
        plain.static_points()
    assert "layers" in caught.value.hint


def test_a_missing_layer_is_an_error(tmp_path: Path) -> None:
    export(tmp_path, made_capture(2, 112), layers=True)
    output = open_output(tmp_path)
    output.layout.static_points.unlink()
    output.layout.moving_points(0).unlink()
    for read in (output.static_points, lambda: output.moving_points(0)):
        with pytest.raises(InputError, match="is missing"):
            read()


def test_a_background_of_several_instants_is_refused(tmp_path: Path) -> None:
    capture = made_capture(2, 112)
    with pytest.raises(ShapeError, match="instants"):
        write_static(OutputLayout(tmp_path, capture.view_names), capture, OPTIONS)
