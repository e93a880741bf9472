"""Slicing and concatenation of records along their time axis."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.geometry.time_axis import clone_tensors, join_times, slice_times, spread_places
from tests.geometry.geometry_samples import intrinsics, normal, transforms


@dataclass(frozen=True)
class Record:
    """A record of 7 instants and 3 views."""

    times: Tensor
    names: tuple[str, ...]
    cameras: Cameras
    depth: Tensor
    dynamic: Tensor | None = None


@pytest.mark.parametrize(
    ("length", "most", "places"),
    [(0, 4, []), (1, 4, [0]), (2, 4, [0, 1]), (4, 4, [0, 1, 2, 3]), (5, 4, [0, 1, 3, 4]), (100, 4, [0, 33, 66, 99])],
)
def test_places_are_spread_evenly_with_both_ends(length: int, most: int, places: list[int]) -> None:
    assert spread_places(length, most) == places


@pytest.fixture
def record() -> Record:
    cameras = Cameras(
        world_to_camera=transforms(1, 7, 3, seed=1), intrinsics=intrinsics(1, 7, 3, seed=2), image_size=(4, 5)
    )
    return Record(torch.arange(7.0), ("a", "b", "c"), cameras, normal(1, 7, 3, 4, 5, seed=3))


def test_joined_slices_equal_the_record(record: Record) -> None:
    joined = join_times([slice_times(record, *cut) for cut in ((0, 2), (2, 3), (3, 7))])
    assert torch.equal(joined.times, record.times)
    assert torch.equal(joined.depth, record.depth)
    assert torch.equal(joined.cameras.world_to_camera, record.cameras.world_to_camera)
    assert torch.equal(joined.cameras.intrinsics, record.cameras.intrinsics)
    assert (joined.names, joined.dynamic, joined.cameras.image_size) == (record.names, None, (4, 5))


def test_slices_share_memory_and_clones_do_not(record: Record) -> None:
    part = slice_times(record, 2, 4)
    assert part.depth.untyped_storage().data_ptr() == record.depth.untyped_storage().data_ptr()
    copied = clone_tensors(part)
    assert copied.depth.untyped_storage().nbytes() == part.depth.numel() * part.depth.element_size()
    assert torch.equal(copied.depth, record.depth[:, 2:4])
