"""The viewer and its page in headless Chromium with software rendering. Skipped without Chromium or playwright."""

import io
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from page4d.geometry.rotation import matrix_from_quaternion
from page4d.options import ExportSettings
from page4d.output.pictures import open_pictures
from page4d.output.record import OOD_WARNING
from page4d.viewer.content import ViewerContent, viewer_content
from page4d.viewer.recording import record_page
from page4d.viewer.scene import Thumbnails, frustum_depth
from page4d.viewer.server import live_viewer
from tests.exporters.capture import make_capture

pytest.importorskip("viser")
playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = shutil.which("chromium")
ARGUMENTS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"]
PATIENCE_S = 90.0
"""The first picture takes 20 s on a busy machine."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1000, "height": 500})
    page.set_default_timeout(PATIENCE_S * 1000)
    yield page
    page.close()


@pytest.fixture
def shown(capture) -> tuple[ViewerContent, Thumbnails]:
    content = viewer_content(capture.output, ExportSettings())
    return content, Thumbnails(content, open_pictures(capture.output, capture.scene))


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def picture(page: Any, left: int = 0, right: int = 600) -> np.ndarray:
    """Return the columns of a screenshot without the panel, below notices."""
    pixels = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int)
    return pixels[:440, left:right]


def rotation(wxyz: np.ndarray) -> np.ndarray:
    return matrix_from_quaternion(torch.from_numpy(np.array(wxyz))).numpy()


def share_of_scene(pixels: np.ndarray) -> float:
    background = pixels[-1, 0]
    return float((np.abs(pixels - background).max(axis=2) > 12).mean())


def opened(page: Any, address: str, text: str) -> list[str]:
    """Open a page, wait for a line on its console, and return its requests, which are still added."""
    requests: list[str] = []
    lines: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda line: lines.append(line.text))
    page.goto(address)
    page.wait_for_selector("canvas")
    deadline = time.monotonic() + PATIENCE_S
    while not any(text in line for line in lines):
        assert time.monotonic() < deadline, lines
        page.wait_for_timeout(200)
    page.wait_for_timeout(3000)
    close = page.locator(".mantine-Notification-closeButton")
    if close.count():
        close.first.click()
    assert not [line for line in lines if "NaN" in line or "rror" in line]
    return requests


def test_the_live_viewer(page, shown):
    content, thumbnails = shown
    with live_viewer(content, thumbnails, port=0) as viewer:
        requests = opened(page, viewer.address, "Connected!")
        wait_until(lambda: len(viewer.clouds.places) == 4 and thumbnails.has(3, 3))
        page.wait_for_timeout(2000)
        first = picture(page)
        assert share_of_scene(first) > 0.01
        assert not page.get_by_text("Share", exact=True).count()

        slider = page.get_by_role("slider").first
        slider.focus()
        slider.press("ArrowRight")
        slider.press("ArrowRight")
        wait_until(lambda: viewer.shown.place == 2)
        page.wait_for_timeout(2000)
        second = picture(page)
        assert share_of_scene(second) > 0.01
        assert (np.abs(first - second).max(axis=2) > 30).mean() > 0.001

        page.get_by_label("play").click()
        wait_until(lambda: viewer.shown.place not in (2,))
        page.get_by_label("play").click()
        wait_until(lambda: not viewer.panel.play.value)

        page.get_by_role("combobox", name="show").click()
        page.get_by_role("option", name="moving").click()
        wait_until(lambda: viewer.shown.choice.only == "moving")
        page.wait_for_timeout(3000)
        moving = picture(page)
        assert 0 < share_of_scene(moving) < share_of_scene(second)
        page.get_by_label(content.views[0].name).click()
        wait_until(lambda: viewer.shown.choice.views == (1, 2, 3))
        viewer.panel.min_confidence.value = 1.0
        viewer.panel.frusta.value = False
        wait_until(lambda: viewer.panel.count.value == "0 points")
        page.wait_for_timeout(3000)
        assert share_of_scene(picture(page)) < 0.002, "an empty cloud"
        address = viewer.address
    assert all(request.startswith((address, "blob:" + address, "data:")) for request in requests)


def test_a_click_on_a_camera_goes_into_it(page, shown):
    content, thumbnails = shown
    with live_viewer(content, thumbnails, port=0) as viewer:
        opened(page, viewer.address, "Connected!")
        wait_until(lambda: len(viewer.server.get_clients()) == 1)
        client = next(iter(viewer.server.get_clients().values()))
        pose = content.camera_to_world[0, 1]
        middle = pose[:3, 3] + frustum_depth(content) * pose[:3, 2]
        in_camera = rotation(client.camera.wxyz).T @ (middle - client.camera.position)
        focal = client.camera.image_height / 2 / np.tan(client.camera.fov / 2)
        x, y = focal * in_camera[:2] / in_camera[2] + [client.camera.image_width / 2, client.camera.image_height / 2]
        page.mouse.move(x, y)
        page.wait_for_timeout(1000)
        page.mouse.click(x, y)
        wait_until(lambda: np.allclose(client.camera.position, pose[:3, 3], atol=1e-3))
        wait_until(lambda: not viewer.cameras.handles[1].visible)
        wait_until(lambda: rotation(client.camera.wxyz)[:, 2] @ pose[:3, 2] > 0.9999)
        page.get_by_text("overview").click()
        wait_until(lambda: viewer.cameras.handles[1].visible)


@pytest.mark.parametrize("with_pictures", [False, True])
def test_the_page_plays_from_a_file(page, shown, tmp_path, with_pictures):
    content, thumbnails = shown
    list(thumbnails.read())
    file: Path = tmp_path / "page.html"
    file.write_bytes(record_page(content, thumbnails if with_pictures else None))
    requests = opened(page, file.as_uri(), "Embedded data loaded!")
    found = [picture(page, right=1000)]
    assert share_of_scene(found[0]) > 0.01
    deadline = time.monotonic() + PATIENCE_S
    while (np.abs(found[0] - found[-1]).max(axis=2) > 30).mean() < 0.001:
        assert time.monotonic() < deadline, "the page does not play"
        page.wait_for_timeout(300)
        found.append(picture(page, right=1000))
    assert page.title() == "scene - page4d"
    assert all(request.startswith(("file:", "blob:", "data:")) for request in requests), requests


def test_the_page_describes_the_result_and_its_switches_change_the_picture(page, tmp_path):
    output = make_capture(tmp_path / "capture", size=(60, 80), velocity=True, tracks=True).output
    run = output.run.model_copy(update={"warnings": [f"{OOD_WARNING}: do not trust depth"]})
    content = viewer_content(replace(output, run=run), ExportSettings())
    file: Path = tmp_path / "page.html"
    file.write_bytes(record_page(content))
    opened(page, file.as_uri(), "Embedded data loaded!")
    panel = page.locator("#page4d")
    instants = {content.instant_text(place) for place in range(content.num_times)}
    text = " ".join(panel.inner_text().split())
    for part in (run.scene.name, OOD_WARNING, "unit: metre", "grade ", *(view.name for view in content.views)):
        assert part in text
    shown: set[str] = set()
    wait_until(lambda: shown.add(panel.locator("output").inner_text()) or len(shown & instants) > 1)
    switches = panel.get_by_role("checkbox")
    names = [switches.nth(index).get_attribute("name") for index in range(switches.count())]
    assert names == ["/static", "/moving", "/velocities", "/tracks", "/cameras"]
    for chosen in names:
        for name in names:
            panel.locator(f'[name="{name}"]').set_checked(False)
        page.wait_for_timeout(1500)
        assert share_of_scene(picture(page, 330, 1000)) < 0.002
        panel.locator(f'[name="{chosen}"]').set_checked(True)
        deadline = time.monotonic() + PATIENCE_S
        while share_of_scene(picture(page, 330, 1000)) < 0.002:  # tracks begin at the second instant
            assert time.monotonic() < deadline, chosen
            page.wait_for_timeout(200)
