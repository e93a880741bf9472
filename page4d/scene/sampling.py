"""Scenes at some of their instants."""

from collections.abc import Sequence
from dataclasses import replace

from page4d.scene.records import PairedFrames, Scene, View


def with_instants(scene: Scene, instants: Sequence[int]) -> Scene:
    """Return the scene at some of its instants, in increasing order."""
    views = tuple(_view_at(view, instants) for view in scene.views)
    return replace(scene, views=views, times=scene.times[list(instants)])


def _view_at(view: View, instants: Sequence[int]) -> View:
    def paired(frames: PairedFrames | None) -> PairedFrames | None:
        return None if frames is None else replace(frames, indices=tuple(frames.indices[index] for index in instants))

    camera = view.camera
    if camera is not None and camera.world_to_camera.ndim > 2:
        camera = replace(camera, world_to_camera=camera.world_to_camera[list(instants)])
    return replace(
        view,
        indices=tuple(view.indices[index] for index in instants),
        camera=camera,
        mask=paired(view.mask),
        depth=paired(view.depth),
    )
