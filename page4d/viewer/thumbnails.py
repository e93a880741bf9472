"""Small pictures of all instants and views, compressed, for the frusta."""

from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

from page4d.formats.maps import encode_image
from page4d.output.pictures import Pictures
from page4d.viewer.content import ViewerContent

LONG_SIDE = 160
"""Long side of a small picture in pixels."""

JPEG_QUALITY = 80


class Thumbnails:
    """Small pictures by place and view, as far as they have been read; for several threads."""

    def __init__(self, content: ViewerContent, pictures: Pictures) -> None:
        self._content = content
        self._pictures = pictures
        self._encoded: dict[tuple[int, int], bytes] = {}

    @property
    def total(self) -> int:
        """Number of pictures."""
        return self._content.num_times * len(self._content.views)

    def read(self) -> Iterator[int]:
        """Read all pictures, view by view; yield the number of pictures so far after each.

        Raises:
            InputError: if a frame cannot be decoded.
        """
        for number, view in enumerate(self._content.views):
            for place, pixels in enumerate(self._pictures.read(view.name, self._content.instants)):
                self._encoded[place, number] = _encoded(shrunk(pixels))
                yield len(self._encoded)

    def has(self, place: int, view: int) -> bool:
        """Return whether a picture has been read; views are counted among the shown ones."""
        return (place, view) in self._encoded

    def get(self, place: int, view: int) -> NDArray[np.uint8] | None:
        """Return a picture [h, w, 3]; None if it has not been read."""
        encoded = self._encoded.get((place, view))
        if encoded is None:
            return None
        decoded = cv2.imdecode(np.frombuffer(encoded, dtype=np.uint8), cv2.IMREAD_COLOR)
        return np.ascontiguousarray(np.asarray(decoded, dtype=np.uint8)[..., ::-1])


def shrunk(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Resize a picture [H, W, 3] to the long side of small ones."""
    height, width = pixels.shape[:2]
    scale = min(LONG_SIDE / max(height, width), 1.0)
    size = (max(round(width * scale), 1), max(round(height * scale), 1))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def _encoded(pixels: NDArray[np.uint8]) -> bytes:
    return encode_image(pixels, ".jpg", [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
