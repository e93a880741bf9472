"""Two-dimensional tracks of points in the pictures of views, from the files of other trackers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from page4d.conventions import PIXEL_CENTER
from page4d.errors import InputError, listed
from page4d.formats.files import read_arrays
from page4d.geometry.camera import denormalize_pixels, normalize_pixels
from page4d.scene.records import Scene, View


@dataclass(frozen=True, kw_only=True)
class PointTracks:
    """N tracks of points in the pictures of one view over the T instants of a scene.

    `pixels` are positions in the original image without lens distortion, the center of the top left pixel at
    (0.5, 0.5); `visible` is whether the point is seen there.
    """

    pixels: Float[np.ndarray, "N T 2"]
    visible: Bool[np.ndarray, "N T"]


def read_point_tracks(folder: Path, scene: Scene) -> tuple[PointTracks | None, ...]:
    """Read the files VIEW.npz of a folder; None for views without a file.

    A file has the arrays of TAPIR and TAPNext: `tracks` [N, T, 2] (x, y) and `visibles` or `occluded` [N, T], the
    corner of the image at (0, 0); or those of CoTracker: `pred_tracks` [B, T, N, 2] or [T, N, 2] and
    `pred_visibility` [B, T, N] or [T, N] (also with a last axis of 1), the center of the first pixel at (0, 0). T are
    the frames of the view's video, or the instants of the scene; positions are pixels of the original video.

    Raises:
        InputError: if there is no file of any view, or a file is damaged or of another form.

    Source: the README files of google-deepmind/tapnet and facebookresearch/co-tracker.
    """
    if not folder.is_dir():
        raise InputError(f"⟨tracks2d='{folder}'⟩ is not a folder", "give the folder of the files VIEW.npz")
    found = tuple(_read_view(folder / f"{view.name}.npz", view, scene.num_times) for view in scene.views)
    if all(tracks is None for tracks in found):
        names = listed([f"{view.name}.npz" for view in scene.views])
        raise InputError(f"⟨tracks2d='{folder}'⟩ has no file of any view", f"name the files {names}")
    return found


def _read_view(path: Path, view: View, num_times: int) -> PointTracks | None:
    if not path.is_file():
        return None
    try:
        pixels, visible = _standard_form(read_arrays(path))
    except (ValueError, KeyError) as error:
        raise InputError(
            f"'{path}' does not hold 2D tracks: {error}",
            "save tracks [N, T, 2] with visibles [N, T], or pred_tracks [T, N, 2] with pred_visibility [T, N]",
        ) from error
    frames = len(view.source.frame_times)
    if pixels.shape[1] == frames:
        pixels, visible = pixels[:, list(view.indices)], visible[:, list(view.indices)]
    elif pixels.shape[1] != num_times:
        raise InputError(
            f"'{path}' has tracks over {pixels.shape[1]} frames; the video has {frames}, the run {num_times}",
            "track the whole video, or the frames of the run",
        )
    visible = visible & np.isfinite(pixels).all(-1)
    return PointTracks(pixels=_undistorted(np.where(visible[..., None], pixels, 0.0), view), visible=visible)


def _standard_form(arrays: Mapping[str, NDArray[Any]]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return positions [N, T, 2] with pixel centers at 0.5, and visibility [N, T]."""
    if "pred_tracks" in arrays:
        tracks, visible = arrays["pred_tracks"], arrays["pred_visibility"]
        tracks = tracks[0] if tracks.ndim == 4 else tracks
        visible = visible[..., 0] if visible.ndim > 2 and visible.shape[-1] == 1 else visible
        visible = visible[0] if visible.ndim == 3 else visible
        pixels, seen = tracks.swapaxes(0, 1) + PIXEL_CENTER, visible.T
    else:
        pixels = arrays["tracks"]
        seen = ~arrays["occluded"].astype(bool) if "occluded" in arrays else arrays["visibles"]
    if pixels.ndim != 3 or pixels.shape[-1] != 2 or seen.shape != pixels.shape[:2]:
        raise ValueError(f"positions {pixels.shape} with visibility {seen.shape}")
    return pixels.astype(np.float64), seen > 0.5 if seen.dtype.kind == "f" else seen.astype(bool)


def _undistorted(pixels: NDArray[np.float64], view: View) -> NDArray[np.float64]:
    """Remove the lens distortion that is removed from the pictures, too."""
    camera = view.camera
    if camera is None or camera.distortion is None or camera.distortion.is_identity:
        return pixels
    points = torch.from_numpy(pixels)
    plane = camera.distortion.undistort(normalize_pixels(points, camera.intrinsics))
    return denormalize_pixels(plane, camera.intrinsics).numpy()
