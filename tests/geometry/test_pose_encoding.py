"""Pose encoding and related operations: parity with the public VGGT code."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from page4d.conventions import INTEGER_PIXEL_CENTER
from page4d.geometry.camera import Cameras, decode_pose, encode_pose, unproject, world_points
from page4d.geometry.rotation import matrix_from_quaternion, quaternion_from_matrix, wxyz_from_xyzw, xyzw_from_wxyz
from page4d.geometry.transforms import invert_rigid, rigid
from tests.geometry.geometry_samples import close, intrinsics, normal, transforms

SIZE = (28, 42)


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return load_file(Path(__file__).parents[1] / "golden" / "geometry_ops.safetensors")


def same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.to(torch.float64), expected.to(torch.float64), atol=1e-5, rtol=1e-5)


def test_decoded_cameras_equal_the_reference(golden: dict[str, Tensor]) -> None:
    cameras = decode_pose(golden["input/pose_enc"], SIZE)
    same(cameras.world_to_camera[..., :3, :], golden["output/extrinsics"])
    same(cameras.intrinsics, golden["output/intrinsics"])


def test_encodings_equal_the_reference(golden: dict[str, Tensor]) -> None:
    cameras = decode_pose(golden["input/pose_enc"], SIZE)
    again, expected = encode_pose(cameras), golden["output/reencoded"]
    sign = (again[..., 3:7] * expected[..., 3:7]).sum(-1, keepdim=True).sign()
    same(torch.cat([again[..., :3], sign * again[..., 3:7], again[..., 7:]], dim=-1), expected)


def test_quaternions_equal_the_reference(golden: dict[str, Tensor]) -> None:
    ours, expected = xyzw_from_wxyz(quaternion_from_matrix(golden["input/rotations"])), golden["output/quat_xyzw"]
    same(ours * (ours * expected).sum(-1, keepdim=True).sign(), expected)
    same(matrix_from_quaternion(wxyz_from_xyzw(expected)), golden["output/quat_to_mat"])


def test_inverse_transforms_equal_the_reference(golden: dict[str, Tensor]) -> None:
    given = golden["output/extrinsics"][0]
    same(invert_rigid(rigid(given[:, :, :3], given[:, :, 3])), golden["output/extrinsics_inverse"])


def test_unprojection_with_integer_pixel_centres_equals_the_reference(golden: dict[str, Tensor]) -> None:
    cameras = decode_pose(golden["input/pose_enc"][0], SIZE)
    depth = golden["input/depth"][..., 0]
    same(world_points(depth, cameras, INTEGER_PIXEL_CENTER), golden["output/unprojected"])
    moved = unproject(depth, cameras.intrinsics) - unproject(depth, cameras.intrinsics, INTEGER_PIXEL_CENTER)
    same(moved[..., 0], 0.5 * depth / cameras.intrinsics[:, 0, 0, None, None])


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_decoding_inverts_encoding(batch: tuple[int, ...]) -> None:
    lens = intrinsics(*batch, seed=1, skew=0.0)
    lens[..., 0, 2], lens[..., 1, 2] = SIZE[1] / 2, SIZE[0] / 2
    cameras = Cameras(world_to_camera=transforms(*batch, seed=2), intrinsics=lens, image_size=SIZE)
    again = decode_pose(encode_pose(cameras), SIZE)
    close(again.world_to_camera, cameras.world_to_camera, factor=4)
    close(again.intrinsics, cameras.intrinsics, factor=4)
    assert again.image_size == SIZE


def test_encoding_inverts_decoding_for_any_quaternion_length() -> None:
    encoding = normal(20, 9, seed=3)
    encoding[:, 7:] = encoding[:, 7:].sigmoid() + 0.3
    again = encode_pose(decode_pose(encoding, SIZE))
    quaternion = torch.nn.functional.normalize(encoding[:, 3:7], dim=-1)
    quaternion = torch.where(quaternion[:, 3:] < 0, -quaternion, quaternion)
    close(again, torch.cat([encoding[:, :3], quaternion, encoding[:, 7:]], dim=-1), factor=4)


def test_gradients_reach_every_element() -> None:
    encoding = normal(2, 9, seed=4)
    encoding[:, 7:] = encoding[:, 7:].sigmoid() + 0.3
    encoding.requires_grad_()
    cameras = decode_pose(encoding, SIZE)
    (cameras.world_to_camera.square().sum() + cameras.world_to_camera.sum() + cameras.intrinsics.sum()).backward()
    assert bool(torch.isfinite(encoding.grad).all())
    assert bool((encoding.grad != 0).all())
