"""`page4d register` on rendered pictures of a textured room, without any part replaced."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation

from page4d.formats.calibrations import read_calibration
from page4d.options import RegisterSettings
from page4d.rig.evidence import PixelEvidence, TextureSource
from page4d.rig.learned import TEXTURE_MODEL
from page4d.rig.records import Evidence, rotation_angle_deg
from page4d.scene.open import open_scene
from page4d_cli.app import run

HEIGHT, WIDTH = 240, 320
FOCAL = 300.0
MATRIX = np.array([[FOCAL, 0, WIDTH / 2], [0, FOCAL, HEIGHT / 2], [0, 0, 1]])
TEXELS = 350
"""Pixels per side of the texture of a wall."""

WALLS = (
    ((-3.0, -2.0, 6.0), (6.0, 0.0, 0.0), (0.0, 4.0, 0.0)),
    ((-3.0, 2.0, 6.0), (6.0, 0.0, 0.0), (0.0, 0.0, -4.0)),
    ((-3.0, -2.0, 2.0), (0.0, 0.0, 4.0), (0.0, 4.0, 0.0)),
    ((0.5, 0.2, 3.6), (1.2, 0.0, 0.3), (0.0, 1.8, 0.0)),
)
"""Rectangles in the order of painting: a corner and two edges, in metres."""


def cameras() -> np.ndarray:
    """Return world_to_camera [3, 4, 4] of cameras that look at the middle of the room, 10 degrees apart."""
    found = []
    for angle in (-10.0, 0.0, 10.0):
        rotation = Rotation.from_euler("y", angle, degrees=True).as_matrix()
        centre = np.array([0.0, 0.0, 4.5]) - rotation.T @ np.array([0.0, 0.0, 4.0])
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = rotation, -rotation @ centre
        found.append(pose)
    return np.stack(found)


def picture(pose: np.ndarray, textures: list[np.ndarray], noise: np.random.Generator) -> np.ndarray:
    """Render the room by homographies; edges of walls lie in front of all cameras."""
    image = np.full((HEIGHT, WIDTH), 90.0, np.float32)
    for wall, texture in zip(WALLS, textures, strict=True):
        corner, right, down = (np.array(part) for part in wall)
        columns = [pose[:3, :3] @ right / TEXELS, pose[:3, :3] @ down / TEXELS, pose[:3, :3] @ corner + pose[:3, 3]]
        homography = MATRIX @ np.stack(columns, axis=1)
        shift = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1.0]])  # centres of OpenCV's pixels are integers
        placed = shift @ homography @ np.linalg.inv(shift)
        area = cv2.warpPerspective(np.ones_like(texture), placed, (WIDTH, HEIGHT), flags=cv2.INTER_LINEAR)
        seen = cv2.warpPerspective(texture, placed, (WIDTH, HEIGHT), flags=cv2.INTER_AREA)
        image = np.where(area > 0.5, seen, image)
    return np.clip(image + noise.normal(scale=2, size=image.shape), 0, 255).astype(np.uint8)


def write_room(folder: Path) -> None:
    noise = np.random.default_rng(0)
    textures = []
    for _ in WALLS:
        layers = [
            cv2.GaussianBlur(noise.normal(size=(TEXELS, TEXELS)), (0, 0), sigma) * sigma for sigma in (3, 6, 12)
        ]
        textures.append((128 + 200 * np.sum(layers, axis=0)).clip(0, 255).astype(np.float32))
    for number, pose in enumerate(cameras(), start=1):
        view = folder / f"cam{number:02}"
        view.mkdir(parents=True)
        for frame in range(2):
            Image.fromarray(picture(pose, textures, noise)).save(view / f"{frame:04}.png")


def test_texture_places_the_cameras_of_rendered_pictures(tmp_path):
    write_room(tmp_path / "room")
    out = tmp_path / "cameras.json"
    options = ["--focal", f"{FOCAL:g}", "--scale-from", f"cam01-cam03={2 * 4 * np.sin(np.radians(10)):.6f}m"]
    assert run(["register", str(tmp_path / "room"), "--out", str(out), "--quiet", *options]) == 0
    found = np.stack([camera.world_to_camera.numpy() for camera in read_calibration(out).cameras])
    true = cameras()
    relative, expected = (poses @ np.linalg.inv(poses[:1]) for poses in (found, true))
    turned = Rotation.from_matrix(relative[:, :3, :3] @ expected[:, :3, :3].transpose(0, 2, 1)).magnitude()
    assert np.degrees(turned).max() < 0.5
    assert np.abs(relative[:, :3, 3] - expected[:, :3, 3]).max() < 0.02


def test_learned_texture_gives_the_relative_pose_where_its_networks_were_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    pytest.importorskip("kornia", reason="kornia is not installed")
    if not TEXTURE_MODEL.are_present:
        pytest.skip(f"the networks were not fetched: {TEXTURE_MODEL.command}")
    write_room(tmp_path / "room")
    scene = open_scene(tmp_path / "room", views=2)
    evidence = PixelEvidence(scene, RegisterSettings(focal=f"{FOCAL:g}", max_instants=1))
    lenses = (evidence.lenses[0], evidence.lenses[1])
    found = TextureSource(evidence, Evidence.LEARNED).registered((0, 1), lenses)
    assert found.is_accepted, found.reason
    assert found.evidence is Evidence.LEARNED
    assert rotation_angle_deg(found.rotation, cameras()[1, :3, :3] @ cameras()[0, :3, :3].T) < 1
