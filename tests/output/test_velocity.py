"""Velocity maps, velocities of clouds, and tracks: what is written is read back."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from page4d.errors import InputError, ShapeError
from page4d.formats.maps import STILL_LEVEL, choose_motion_step, quantize_velocity, read_velocity, write_png
from page4d.formats.ply import join_clouds
from page4d.formats.tracks import Tracks, read_tracks, write_tracks
from page4d.options import PointOptions
from page4d.output.points import cloud_comments, merged_cloud, static_cloud
from tests.output.output_scene import made_capture, with_velocity


def test_velocities_of_a_map_are_read_back_to_half_a_step_and_still_pixels_exactly(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    velocity = torch.randn(20, 30, 3, generator=random)
    sigma = torch.rand(20, 30, generator=random) + 0.01
    velocity[:5], sigma[3], velocity[7, 0] = 0.0, 0.0, torch.tensor([1e-6, -2e-6, 0.0])
    levels, sigma_levels, clipped = quantize_velocity(velocity, sigma, 0.001)
    paths = tmp_path / "motion.png", tmp_path / "sigma.png"
    write_png(paths[0], levels)
    write_png(paths[1], sigma_levels)
    found, spread = read_velocity(*paths, (20, 30), 0.001)
    assert clipped == 0
    assert (levels[:3] == STILL_LEVEL).all()
    assert not levels[3].any()
    assert (found[:5] == 0).all()
    assert not spread[3].any()
    assert (spread[:3] > 0).all()
    assert np.abs(found[8:] - velocity[8:].numpy()).max() <= 0.00051
    assert np.abs(spread[4:] - sigma[4:].numpy()).max() <= 0.00051
    assert found[7, 0].tolist() == pytest.approx([0.0, -0.001, 0.0])  # moving, however slowly


def test_velocities_that_do_not_fit_the_levels_are_unknown_and_counted() -> None:
    velocity = torch.tensor([[[40.0, 0.0, -3.0], [1.0, float("nan"), 0.0], [1.0, 0.0, 0.0], [32.767, 0.0, -32.767]]])
    levels, sigma_levels, clipped = quantize_velocity(velocity, torch.tensor([[1.0, 1.0, 66.0, 65.5]]), 0.001)
    assert levels.tolist() == [[[0] * 3, [0] * 3, [0] * 3, [65535, 32768, 1]]]
    assert clipped == 2
    assert sigma_levels.tolist() == [[0, 0, 0, 65500]]


@pytest.mark.parametrize(
    ("depth_scale", "speed", "step"),
    [(1000.0, 0.0, 1e-3), (1000.0, 32.0, 1e-3), (1000.0, 33.0, 2e-3), (50.0, 150.0, 2e-2), (2e5, 2.0, 1e-4)],
)
def test_levels_of_velocities_follow_depth_and_the_time_between_instants(
    depth_scale: float, speed: float, step: float
) -> None:
    assert choose_motion_step(depth_scale, speed) == pytest.approx(step, rel=1e-12)


def test_tracks_are_read_back_and_other_files_refused(tmp_path: Path) -> None:
    tracks = Tracks(
        coords=np.full((3, 2, 3), np.nan, np.float32),
        visibs=np.zeros((3, 2), bool),
        view_visibs=np.zeros((3, 2, 4), bool),
        sigma=np.zeros((3, 2), np.float32),
        start=np.zeros(2, np.int32),
        colors=np.zeros((2, 3), np.uint8),
        times=np.arange(3.0),
        ids=np.arange(2),
    )
    path = tmp_path / "tracks.npz"
    write_tracks(path, tracks)
    first = path.read_bytes()
    found = read_tracks(path)
    assert all(
        np.array_equal(value, getattr(found, name), equal_nan=value.dtype.kind == "f")
        for name, value in vars(tracks).items()
    )
    write_tracks(path, tracks)
    assert path.read_bytes() == first
    path.write_bytes(b"PK")
    with pytest.raises(InputError, match="does not hold tracks"):
        read_tracks(path)
    with pytest.raises(ShapeError, match="start"):
        replace(tracks, start=np.zeros(3, np.int32))


def test_tensors_of_other_axes_are_refused() -> None:
    capture = with_velocity(made_capture(2, 28, ((120, 160),)), (1.0, 0.0, 0.0))
    for name in ("times", "images", "valid", "depth_confidence", "dynamic", "velocity", "velocity_sigma"):
        with pytest.raises(ShapeError, match=f"predictions: {name} has shape"):
            replace(capture, **{name: getattr(capture, name)[..., :-1]})
    with pytest.raises(ShapeError, match="predictions: cameras has shape"):
        replace(capture, cameras=capture.cameras[:, :1])


def test_filters_keep_the_velocity_of_every_point(open3d: ModuleType) -> None:
    capture = with_velocity(made_capture(1, 112), (10.5, -1.0, 0.25))
    assert open3d is not None
    options = PointOptions(edge_angle_deg=90, voxel_size=0.05, outliers=True, normals=True, max_points=3000)
    cloud = merged_cloud(capture, options)
    assert cloud.num_points == 3000
    assert cloud.normals is not None
    moving, known = cloud.dynamic != 0, cloud.velocity_sigma > 0
    assert (moving & known).any()
    assert (~known).any()
    assert (cloud.velocity[moving & known] == np.float32([10.5, -1.0, 0.25])).all()
    assert not cloud.velocity[~(moving & known)].any()
    np.testing.assert_allclose(cloud.velocity_sigma[known], 0.01 + 0.02 * cloud.dynamic[known], rtol=1e-6)


def test_the_static_layer_has_no_velocities_and_joined_ones_are_unknown() -> None:
    capture = with_velocity(made_capture(1, 56), (1.0, 0.0, 0.0))
    static, moving = static_cloud(capture), merged_cloud(capture)
    assert static.velocity is None
    assert not any("velocity" in line for line in cloud_comments(capture, [], "static points"))
    assert any("velocity in metres per second" in line for line in cloud_comments(capture, []))
    for clouds in ([static, moving], [moving, static]):
        joined = join_clouds(clouds)
        of_static = slice(0, static.num_points) if clouds[0] is static else slice(moving.num_points, None)
        assert joined.num_points == static.num_points + moving.num_points
        assert not joined.velocity_sigma[of_static].any()
        assert joined.velocity.sum() == moving.velocity.sum()
