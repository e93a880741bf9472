"""The pose model: a person detector and a network of body landmarks, both TensorFlow Lite files of MediaPipe Pose.

Source: Bazarevsky et al. (2020), BlazePose: On-device Real-time Body Pose Tracking, arXiv:2006.10204.
"""

import hashlib
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from page4d.errors import CapabilityError
from page4d.io.atomic import file_sha256
from page4d.io.folders import CachedFiles

FloatArray = NDArray[np.float32]

DETECTOR = "pose_detection.tflite"
LANDMARKS = "pose_landmark_full.tflite"

POSE_MODEL = CachedFiles(
    "people",
    "pose_model",
    {
        DETECTOR: "9ba9dd3d42efaaba86b4ff0122b06f29c4122e756b329d89dca1e297fd8f866c",
        LANDMARKS: "e9a5c5cb17f736fafd4c2ec1da3b3d331d6edbe8a0d32395855aeb2cdfd64b9f",
    },
)
"""The files in the wheel of MediaPipe 0.10.21."""

_BOX_VALUES = 12
_POINTS = (39, 5)
_HEATMAPS = (64, 64, 39)


class RawLandmarks(NamedTuple):
    """Outputs of the network of landmarks: 39 points (x, y, z, visibility, presence), person flag, heatmaps."""

    points: Float[FloatArray, "39 5"]
    flag: float
    heatmaps: Float[FloatArray, "64 64 39"]


def model_sha256() -> str:
    """Return one hash of the files of the pose model."""
    return hashlib.sha256("".join(file_sha256(file) for file in POSE_MODEL.paths).encode()).hexdigest()


NO_POSE_MODEL = f"the model of body keypoints was not fetched ('{POSE_MODEL.command}')"


def is_fetched() -> bool:
    """Return whether both files of the pose model are present."""
    return POSE_MODEL.are_present


def is_runnable() -> bool:
    """Return whether the pose model is present, with the package that runs it."""
    return is_fetched() and find_spec("ai_edge_litert") is not None


@dataclass(frozen=True)
class PoseModel:
    """Two interpreters on one thread each; an object must not be used by two threads at once."""

    detector: Any
    landmarker: Any

    def detect(self, image: Float[FloatArray, "224 224 3"]) -> tuple[FloatArray, FloatArray]:
        """Return raw boxes [2254, 12] and score logits [2254] for RGB in [-1, 1]."""
        outputs = _run(self.detector, image)
        boxes = next(array for array in outputs if array.shape[-1] == _BOX_VALUES)
        scores = next(array for array in outputs if array.shape[-1] == 1)
        return boxes[0], scores[0, :, 0]

    def landmarks(self, image: Float[FloatArray, "256 256 3"]) -> RawLandmarks:
        """Return the landmarks in pixels of the crop for RGB in [0, 1]."""
        by_size = {array[0].size: array[0] for array in _run(self.landmarker, image)}
        points = by_size[math.prod(_POINTS)].reshape(_POINTS)
        return RawLandmarks(points, float(by_size[1].ravel()[0]), by_size[math.prod(_HEATMAPS)])


def pose_model() -> PoseModel | None:
    """Load the pose model; None if it was not fetched.

    Raises:
        CapabilityError: if this platform has no runner for it.
    """
    if not is_fetched():
        return None
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise CapabilityError(
            "people cannot be detected: ai-edge-litert is not installed", "pip install ai-edge-litert"
        ) from error
    with _silent_stderr():
        detector, landmarker = (Interpreter(model_path=str(file), num_threads=1) for file in POSE_MODEL.paths)
        detector.allocate_tensors()
        landmarker.allocate_tensors()
    return PoseModel(detector, landmarker)


_SILENCE = threading.Lock()
"""Held while stderr is dropped: a second thread would keep the first one's silence as the stream to restore."""


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Drop what is written to stderr: TensorFlow Lite reports its delegate there, and has no setting for it."""
    with _SILENCE:
        try:
            kept = os.dup(2)
        except OSError:  # the shell closed it
            yield
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            os.close(nowhere)


def _run(interpreter: Any, image: FloatArray) -> list[FloatArray]:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], image[None])
    interpreter.invoke()
    return [interpreter.get_tensor(output["index"]) for output in interpreter.get_output_details()]
