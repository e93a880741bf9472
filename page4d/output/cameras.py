"""The cameras of a whole capture at original pixels, from predictions, and their trajectories as files."""

from decimal import Decimal

import torch

from page4d.conventions import INTEGER_PIXEL_CENTER, PIXEL_CENTER
from page4d.errors import OutputError, Page4DError
from page4d.formats.cameras_json import CaptureCameras
from page4d.formats.open3d import encode_intrinsics, write_trajectory
from page4d.geometry.camera import move_pixel_center
from page4d.geometry.rotation import quaternion_from_matrix, xyzw_from_wxyz
from page4d.geometry.transforms import invert_rigid, is_constant
from page4d.io.atomic import WrittenFile, write_bytes_atomic
from page4d.output.layout import OutputLayout
from page4d.records import Predictions


def capture_cameras(predictions: Predictions) -> CaptureCameras:
    """Take the cameras of instants of a capture, carried back to the original images.

    Raises:
        OutputError: if a camera is not finite.
    """
    check_finite(predictions)
    transforms = predictions.pixel_transforms
    at_network = predictions.cameras.intrinsics[0].detach().cpu().double()
    views = [transform.intrinsics_to_original(at_network[:, view]) for view, transform in enumerate(transforms)]
    return CaptureCameras(
        times=predictions.times.detach().cpu().double(),
        view_names=predictions.view_names,
        image_sizes=tuple(transform.original_size for transform in transforms),
        world_to_camera=predictions.cameras.world_to_camera[0].detach().cpu().double(),
        intrinsics=torch.stack(views, dim=1),
        scale=predictions.scale,
        map_sizes=tuple(transform.map_size for transform in transforms),
    )


def check_finite(predictions: Predictions, error: type[Page4DError] = OutputError) -> None:
    """Refuse cameras that are not finite.

    Raises:
        Page4DError: of class `error`, naming the first such camera.
    """
    cameras = predictions.cameras
    finite = cameras.world_to_camera.isfinite().all((-1, -2)) & cameras.intrinsics.isfinite().all((-1, -2))
    if not bool(finite.all()):
        _, index, view = (~finite).nonzero()[0].tolist()
        name, seconds = predictions.view_names[view], float(predictions.times[index])
        raise error(
            f"the camera of view '{name}' at {seconds:.3f} s is not finite",
            "repeat with ⟨precision=fp32⟩; if that does not help, the weights do not suit these videos",
        )


def write_tum(layout: OutputLayout, cameras: CaptureCameras) -> list[WrittenFile]:
    """Write each view's trajectory as camera-to-world positions and quaternions (TUM RGB-D format).

    Times are the time stamps of the frames, to the nanosecond, if the frames have some.
    """
    written = []
    camera_to_world = invert_rigid(cameras.world_to_camera)
    quaternions = xyzw_from_wxyz(quaternion_from_matrix(camera_to_world[..., :3, :3]))
    rows = torch.cat([camera_to_world[..., :3, 3], quaternions], dim=-1)
    for view, name in enumerate(cameras.view_names):
        lines = [f"# timestamp tx ty tz qx qy qz qw, camera-to-world, unit {cameras.scale.unit}"]
        for time, row in zip(cameras.times.tolist(), rows[:, view].tolist(), strict=True):
            # A double holds a date to 0.2 microseconds only.
            exact = (
                f"{Decimal(cameras.start_ns + round(time * 1e9)).scaleb(-9):f}" if cameras.start_ns else repr(time)
            )
            lines.append(" ".join((exact, *(repr(number) for number in row))))
        written.append(write_bytes_atomic(layout.tum(name), ("\n".join(lines) + "\n").encode("ascii")))
    return written


def write_open3d_cameras(layout: OutputLayout, cameras: CaptureCameras) -> list[WrittenFile]:
    """Write each view's trajectory as Open3D's PinholeCameraTrajectory, with integer pixel centres, at two sizes.

    One has the intrinsics of the original images; the other one, in the folder of the depth maps, those of the maps.
    Intrinsics of maps that are the same at all instants also have a file of their own.
    """
    written = []
    for view, name in enumerate(cameras.view_names):
        files = [(layout.open3d_trajectory(name), cameras.image_sizes[view])]
        files += [(layout.map_trajectory(name), size) for size in cameras.map_sizes[view : view + 1]]
        for path, size in files:
            matrices = move_pixel_center(cameras.intrinsics_at(view, size), PIXEL_CENTER, INTEGER_PIXEL_CENTER)
            written.append(write_trajectory(path, cameras.world_to_camera[:, view], matrices, size))
        if cameras.map_sizes and is_constant(matrices):
            written.append(
                write_bytes_atomic(layout.map_intrinsics(name), encode_intrinsics(matrices[0].numpy(), size))
            )
    return written
