"""A run as one HTML page that plays without a server or a network."""

import html
import json
from collections.abc import Iterator
from pathlib import Path

from page4d.choices import PointLayer
from page4d.errors import OutputError, Progress, UsageError
from page4d.formats.ply import PointCloud
from page4d.io.atomic import check_file, real_path
from page4d.output.reader import Output
from page4d.viewer import scene
from page4d.viewer.content import SHOWN_AT_FIRST, ViewerContent
from page4d.viewer.scene import CameraNodes, Thumbnails
from page4d.viewer.server import running_server

MAX_PAGE_BYTES = 250_000_000
"""Largest page: browsers hold strings of up to half a gigabyte, and need several times their size to open them."""

_CLIENT_BYTES = 830_000
_POINT_BYTES = {"float16": 7.5, "float32": 15.2}
_PICTURE_BYTES = 6_000
_SEGMENT_BYTES = 22
"""Measured sizes of parts of a page, compressed and in base64."""


def check_page_file(output: Output, file: Path, *, overwrite: bool) -> None:
    """Refuse a file that cannot be written, or whose writing would lose something.

    Raises:
        UsageError: if it lies in the folder of the run, or exists and `overwrite` is not given.
        OutputError: if it cannot be written.
    """
    if real_path(file).is_relative_to(real_path(output.layout.folder)):
        raise UsageError(f"'{file}' is in the folder of the run", "choose a file outside it")
    if file.exists() and not file.is_dir() and not file.is_file():
        raise OutputError(f"cannot write to '{file}': it is not a file", "choose another name")
    check_file(file, overwrite=overwrite)


def estimated_bytes(content: ViewerContent, *, with_pictures: bool) -> int:
    """Return the size of the page, without a choice of views."""
    pictures = content.num_times * len(content.views) if with_pictures else 0
    points = content.num_sent * _POINT_BYTES[content.precision]
    tracks = min(content.tracks.num_tracks, scene.MAX_TRACKS) if content.tracks is not None else 0
    lines = content.num_times * ((scene.MAX_SEGMENTS if content.output.has_velocity else 0) + tracks * scene.TRAIL)
    return round(_CLIENT_BYTES + points + pictures * _PICTURE_BYTES + lines * _SEGMENT_BYTES)


def check_size(content: ViewerContent, *, with_pictures: bool) -> None:
    """Refuse a page that browsers could not open.

    Raises:
        UsageError: with its estimated size.
    """
    size = estimated_bytes(content, with_pictures=with_pictures)
    if size > MAX_PAGE_BYTES:
        raise UsageError(
            f"the page would have about {size / 1e6:,.0f} MB with {content.num_sent:,} points; browsers open "
            f"pages of up to {MAX_PAGE_BYTES / 1e6:.0f} MB",
            "give a smaller ⟨max_points⟩, or fewer ⟨instants⟩",
        )


def record_page(
    content: ViewerContent, thumbnails: Thumbnails | None = None, progress: Progress | None = None
) -> bytes:
    """Return the page: the viewer's program and a recording of all instants.

    A panel describes the result and has switches for static and moving points, velocities, tracks and cameras.

    Raises:
        InputError: if a file of the run cannot be read.
        UsageError: if the page is too large.
        CapabilityError: if viser is not installed.
    """
    check_size(content, with_pictures=thumbnails is not None)
    with running_server(0, content.output.run.scene.name) as server:
        serializer = server.get_scene_serializer()
        scene.prepare_scene(server, content)
        cameras = CameraNodes(server.scene, content, thumbnails)
        instant = server.scene.add_frame("/instant", show_axes=False)
        span_s = scene.default_steps(content) / content.frame_rate if content.output.has_velocity else 0.0
        for place, seconds in enumerate(content.durations.tolist()):
            with server.atomic():
                for layer, cloud in _layers(content, place):
                    points = cloud.xyz, cloud.rgb
                    scene.add_cloud(server.scene, f"/{layer}/points", content, points, size=content.point_size)
                    if layer is PointLayer.MOVING and content.output.has_velocity:
                        segments = scene.velocity_segments(cloud, content.choice, span_s)
                        scene.add_segments(server.scene, "/velocities/lines", content, segments)
                if content.tracks is not None:
                    segments = scene.track_segments(content.tracks, place)
                    scene.add_segments(server.scene, "/tracks/lines", content, segments)
                cameras.show(place)
                instant.position = (place, 0, 0)
            serializer.insert_sleep(seconds)
            if progress is not None:
                progress(place + 1, content.num_times)
        page = str(serializer.as_html(dark_mode=True))
    name = html.escape(content.output.run.scene.name)
    page = page.replace("<title>Viser</title>", f"<title>{name} - page4d</title>", 1)
    start, end = page.rsplit("</body>", 1)
    return f"{start}{_panel(content, name)}</body>{end}".encode("utf-8", "replace")


_PANEL = """\
<style>
#page4d {{ position: fixed; top: 1em; left: 1em; width: 19em; max-width: calc(100% - 4em);
  max-height: calc(100% - 7em); overflow: auto; z-index: 1; padding: .6em .9em; border-radius: 6px;
  background: #222d; color: #ddd; font: 14px/1.4 system-ui, sans-serif }}
#page4d summary {{ font-weight: bold; cursor: pointer }}
#page4d fieldset {{ border: 0; padding: 0; margin: .4em 0 0 }}
#page4d label {{ display: block; cursor: pointer }}
#page4d input {{ margin: 0 .3em 0 0; vertical-align: -.1em }}
</style>
<details id="page4d" open><summary>{title}</summary>{description}
<output></output><fieldset disabled>{switches}</fieldset></details>
<script>{script}</script>"""

_SCRIPT = """
const panel = document.getElementById("page4d"), texts = {texts};
setInterval(() => {{
  const viewer = window.__viserMutable, nodes = window.__viserSceneTree?.getState();
  if (!viewer || !nodes) return;
  const queue = viewer.messageQueue;
  if (!Object.hasOwn(queue, "push")) queue.push = (...messages) => {{
    for (const one of messages) {{
      const box = one.type === "SetSceneNodeVisibilityMessage" && panel.querySelector(`input[name="${{one.name}}"]`);
      if (box) one.visible = box.checked;
    }}
    return Array.prototype.push.apply(queue, messages);
  }};
  panel.querySelector("fieldset").disabled = false;
  for (const box of panel.querySelectorAll("input")) {{
    if (!nodes[box.name] || (nodes[box.name].visibility ?? true) === box.checked) continue;
    queue.push({{type: "SetSceneNodeVisibilityMessage", name: box.name, visible: box.checked}});
    viewer.requestRender();
  }}
  panel.querySelector("output").value = texts[viewer.nodePoseData["/instant"]?.position[0] ?? 0];
}}, 50);
"""
"""Set the visibility of parent nodes, also in messages of the recording, so that a choice outlives its repetition.

Source: viser 1.1, client/src/App.tsx, which exposes its state to scripts, and MessageHandler.tsx.
"""


def _panel(content: ViewerContent, title: str) -> str:
    """Return the panel over the scene as HTML."""
    output = content.output
    exists = {
        "moving": output.has_moving_points,
        "velocities": output.has_velocity,
        "tracks": content.tracks is not None,
    }
    switches = (
        f'<label><input type="checkbox" name="/{name}"{" checked" * is_on}> '
        f"{f'{name} points' if name in (PointLayer.STATIC, PointLayer.MOVING) else name}</label>"
        for name, is_on in SHOWN_AT_FIRST.items()
        if exists.get(name, True)
    )
    texts = json.dumps([content.instant_text(place) for place in range(content.num_times)])
    description = content.description(is_graded=True)
    script = _SCRIPT.format(texts=texts)
    return _PANEL.format(title=title, description=description, switches="".join(switches), script=script)


def _layers(content: ViewerContent, place: int) -> Iterator[tuple[PointLayer, PointCloud]]:
    """Yield the layers that change at an instant; points that never move are those of the first.

    They are in the order of the file: neighbours in a picture compress better than points sorted by confidence.
    """
    if content.clouds.has_layers:
        if place == 0:
            yield PointLayer.STATIC, content.points(place, PointLayer.STATIC)
        yield PointLayer.MOVING, content.points(place, PointLayer.MOVING)
        return
    cloud = content.points(place)
    for layer in (PointLayer.STATIC, PointLayer.MOVING):
        yield layer, cloud[(cloud.dynamic != 0) == (layer is PointLayer.MOVING)]
