"""Header, orientation and pixels of one image file.

The orientation of images and videos, from EXIF or a display matrix, is a transposition and two flips. Errors of the
decoders become an `InputError` with the name of the file.
"""

import io
import math
import re
import struct
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage
from PIL.TiffImagePlugin import TiffImageFile

from page4d.errors import InputError, Page4DError
from page4d.formats import depth_files
from page4d.formats.maps import decode_image
from page4d.io.exhaustion import is_exhausted
from page4d.io.input_files import RESTORE, check_regular_file, reading_again

Image = NDArray[Any]
"""RGB pixels [H, W, 3] (masks, depth: [H, W]) as uint8, or uint16 where the source has more than 8 bits; depth may be
float32."""


def in_8_bits(pixels: Image) -> NDArray[np.uint8]:
    """Return the upper 8 bits of 16-bit pixels, and 8-bit pixels as they are."""
    return (pixels >> 8).astype(np.uint8) if pixels.dtype == np.uint16 else pixels


_TOLERANCE = 0.02
"""Upper bound on the terms of a quarter turn that should be 0, relative to the others: about 1 degree."""


@dataclass(frozen=True)
class Orientation:
    """One of the eight orientations of an image: rows and columns are exchanged, then each axis may be flipped."""

    is_transposed: bool = False
    flips_rows: bool = False
    flips_columns: bool = False

    @property
    def is_mirrored(self) -> bool:
        """True if it is not a rotation."""
        return self.is_transposed ^ self.flips_rows ^ self.flips_columns

    @property
    def clockwise_deg(self) -> int:
        """Rotation in degrees, after left and right are exchanged if `is_mirrored`."""
        if self.is_transposed:
            return 90 if self.flips_columns else 270
        return 180 if self.flips_rows else 0

    def size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the (height, width) after `apply` of an image of this (height, width), or the reverse."""
        return (size[1], size[0]) if self.is_transposed else size

    def apply(self, pixels: Image) -> Image:
        """Turn an image [H, W, ...] from its stored into its upright orientation."""
        if self.is_transposed:
            pixels = pixels.swapaxes(0, 1)
        if self.flips_rows:
            pixels = pixels[::-1]
        if self.flips_columns:
            pixels = pixels[:, ::-1]
        return np.ascontiguousarray(pixels)


def exif_orientation(value: int) -> Orientation | None:
    """Return the orientation of a value of EXIF, None unless it is 1 to 8.

    Source: CIPA DC-008 (Exif 2.32), tag 0x0112.
    """
    if not 1 <= value <= 8:
        return None
    return Orientation(
        is_transposed=value >= 5, flips_rows=value in (3, 4, 7, 8), flips_columns=value in (2, 3, 6, 7)
    )


def display_matrix(frame: Any) -> tuple[int, int, int, int] | None:
    """Return a, b, c, d of a frame's display matrix, None without one.

    The stored pixel (x, y) is shown at (a x + c y, b x + d y), up to a scale and an offset.

    Source: ISO/IEC 14496-12, 6.2.2 (matrix of a track); FFmpeg, libavutil/display.h.
    """
    try:
        data = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:
        # PyAV cannot list the side data of a frame with a kind that it does not define, such as MV-HEVC views.
        angle = math.radians(-frame.rotation)
        cosine, sine = round(math.cos(angle) * 2**16), round(math.sin(angle) * 2**16)
        return cosine, sine, -sine, cosine
    if data is None:
        return None
    a, b, _, c, d, *_ = struct.unpack("=9i", bytes(data))
    return a, b, c, d


def orientation_of(matrix: tuple[int, int, int, int]) -> Orientation | None:
    """Return the orientation of a display matrix a, b, c, d; None unless it is a quarter turn, mirrored or not.

    A scale is ignored; the pixel aspect of the stream contains it.
    """
    a, b, c, d = matrix
    straight, turned = min(abs(a), abs(d)), min(abs(b), abs(c))
    if max(abs(b), abs(c)) <= _TOLERANCE * straight > 0:
        return Orientation(flips_rows=d < 0, flips_columns=a < 0)
    if max(abs(a), abs(d)) <= _TOLERANCE * turned > 0:
        return Orientation(is_transposed=True, flips_rows=b < 0, flips_columns=c < 0)
    return None


_FORMATS = ("PNG", "JPEG", "BMP", "DIB", "TIFF", "WEBP", "GIF")
"""Formats of Pillow that are opened, whatever the suffix; some of the others run external programs."""

_PNG_START = re.compile(rb"\x89PNG\r\n\x1a\n.{8}.{8}(?P<bits>.)(?P<color>.)", re.DOTALL)
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PNG_PALETTE = 3
_TIFF_SUBFILE, _TIFF_BITS, _TIFF_COLOR, _TIFF_CHANNELS, _TIFF_NUMBER_KIND = 254, 258, 262, 277, 339
_TIFF_PALETTE = 3
_FLOAT = "float "
_TIFF_NUMBERS = {1: "", 2: "signed ", 3: _FLOAT}
_NUMPY_NUMBERS = {"u": "", "i": "signed ", "f": _FLOAT, "b": "Boolean "}
_REDUCED = 1
"""Bit of the tag of a TIFF page that is a smaller copy of another."""

_MAX_PAGES = 16
"""Maximum number of pages of a TIFF in which a second full-size image is searched."""

_READABLE_BITS = (1, 2, 4, 8, 16)
_PROJECTION = re.compile(r"GPano:ProjectionType\W{1,3}(\w[\w ]*)")
_PLANE = ("rectilinear", "perspective")
_EXIF_ORIENTATION = 0x0112
_RENDER_AGAIN = "remove it or render it again"


@dataclass(frozen=True, kw_only=True)
class ImageHeader:
    """Properties of an image file before decoding; `size` is the (height, width) of the upright image.

    `orientation` is still to be applied to decoded pixels. `numbers` qualifies pixels that are not unsigned integers,
    such as "float ".
    `projection` is that of a panorama, "" if none is declared (Google, Photo Sphere XMP Metadata).
    """

    size: tuple[int, int]
    orientation: Orientation
    bits: int
    channels: int
    numbers: str = ""
    projection: str = ""
    has_palette: bool = False
    has_alpha: bool = False
    has_damaged_exif: bool = False
    has_more_images: bool = False

    @property
    def is_float(self) -> bool:
        """True if pixels are floating-point numbers."""
        return self.numbers == _FLOAT

    @property
    def pixel_kind(self) -> str:
        """Kind of the pixels for messages, such as "8-bit colour"."""
        color = "palette" if self.has_palette else "grayscale" if self.channels == 1 else "colour"
        return f"{self.bits}-bit {self.numbers}{color}"


def read_header(file: Path) -> ImageHeader:
    """Read the header of an image file; no pixel is decoded.

    Raises:
        InputError: if the file is not an image.
        OSError: if the machine has no file handles or memory left.
    """
    name = image_name(file)
    check_regular_file(file, name)
    with file.open("rb") as stream, _decoding(f"{name} is not a readable image", _RENDER_AGAIN):
        return _header(stream, name)


def read_pixels(
    file: Path, size: tuple[int, int], *, grayscale: bool = False, background: tuple[int, int, int] | None = None
) -> Image:
    """Decode one upright image completely, as RGB [H, W, 3] or grayscale [H, W], 16-bit or float if the file is.

    `size` is that of its header when it was first read. Alpha is ignored, or blended with `background` (RGB) if the
    image is RGBA with 8 bits per channel.

    Raises:
        InputError: if the image is damaged, or was removed or replaced since.
        OSError: if the machine has no file handles or memory left.
    """
    name = image_name(file)
    with reading_again(name):
        if file.exists() and not file.is_file():
            raise InputError(f"{name} is no longer a file", RESTORE)  # reading a pipe would block
        data = file.read_bytes()
    with _decoding(f"{name} is damaged", "copy or render it again"):
        header = _header(io.BytesIO(data), name)
        if header.size != size:
            (height, width), (old_height, old_width) = header.size, size
            raise InputError(
                f"{name} changed during the run: it is {width}x{height}, and was {old_width}x{old_height}", RESTORE
            )
        if depth_files.is_depth_file(data):
            pixels = depth_files.decode(data, name)
        else:
            pixels = _decode(data, header, grayscale=grayscale, background=background)
        if pixels.shape[:2] != size:
            raise ValueError("the decoded image has another size than its header")
    return pixels


def check_readable(name: str, header: ImageHeader) -> None:
    """Refuse a panorama, and an image whose pixels are not whole numbers of at most 8 or of 16 bits.

    Raises:
        InputError: naming the projection, or the kind of its pixels.
    """
    if header.projection and header.projection not in _PLANE:
        raise spherical_error(name, header.projection)
    if header.bits not in _READABLE_BITS or header.numbers:
        raise InputError(f"{name} has {header.pixel_kind} pixels", "convert it to 8 or 16 bits per channel")


def spherical_error(name: str, projection: str) -> InputError:
    """Return the error for footage whose projection is not that of a camera with one lens."""
    of_ffmpeg = {"half equirectangular": "hequirect", "cube map": "c3x2"}.get(projection, "equirect")
    return InputError(
        f"{name} is a panorama ({projection}), not the image of a pinhole camera",
        "cut out a view per direction, all with one field of view: "
        f"ffmpeg -i IN -vf v360={of_ffmpeg}:flat:h_fov=90:v_fov=60:yaw=0 OUT.mp4",
    )


def image_name(file: Path) -> str:
    """Return the name of an image for messages, with that of its folder."""
    return f"{file.parent.name}/{file.name}"


@contextmanager
def _decoding(problem: str, hint: str) -> Iterator[None]:
    """Translate an error of a decoder, of any class, into an InputError, unless memory or file handles ran out.

    Pillow's pixel limit and warnings are suspended: `check_pixels` applies the limit of the user.
    """
    limit, PillowImage.MAX_IMAGE_PIXELS = PillowImage.MAX_IMAGE_PIXELS, None
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except Page4DError:
        raise
    except Exception as error:
        if is_exhausted(error):
            raise
        raise InputError(problem, hint) from error
    finally:
        PillowImage.MAX_IMAGE_PIXELS = limit


def _header(stream: BinaryIO, name: str) -> ImageHeader:
    start = stream.read(26)
    stream.seek(0)
    if depth_files.is_depth_file(start):
        size, dtype = depth_files.read_layout(stream.read(depth_files.LONGEST_HEADER), name)
        return ImageHeader(
            size=size,
            orientation=Orientation(),
            bits=8 * dtype.itemsize,
            channels=1,
            numbers=_NUMPY_NUMBERS[dtype.kind],
        )
    with PillowImage.open(stream, formats=_FORMATS) as image:
        orientation, has_damaged_exif = _orientation(image)
        header = ImageHeader(
            size=orientation.size((image.height, image.width)),
            orientation=orientation,
            bits=8,
            channels=len(image.getbands()),
            projection=_projection(image.info),
            has_palette=image.mode in ("P", "PA"),
            has_alpha=image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info,
            has_damaged_exif=has_damaged_exif,
        )
        if isinstance(image, TiffImageFile):
            tags = image.tag_v2
            header = replace(
                header,
                bits=max(tags.get(_TIFF_BITS, (1,))),
                channels=tags.get(_TIFF_CHANNELS, 1),
                numbers=_TIFF_NUMBERS[max(tags.get(_TIFF_NUMBER_KIND, (1,)))],
                has_palette=tags.get(_TIFF_COLOR) == _TIFF_PALETTE,
            )
        elif png := _PNG_START.match(start):
            color = png["color"][0]
            header = replace(
                header, bits=png["bits"][0], channels=_PNG_CHANNELS[color], has_palette=color == _PNG_PALETTE
            )
        return replace(header, has_more_images=_has_more_images(image))


def _projection(properties: Mapping[Any, Any]) -> str:
    """Return the projection of a panorama in the XMP of a JPEG, TIFF, WebP or PNG."""
    xmp = properties.get("xmp") or properties.get("XML:com.adobe.xmp", "")
    match = _PROJECTION.search(xmp.decode("latin-1") if isinstance(xmp, bytes) else str(xmp))
    return match[1].lower() if match else ""


def _orientation(image: PillowImage.Image) -> tuple[Orientation, bool]:
    """Return the orientation of EXIF that is still to be applied, and whether the EXIF data are damaged.

    Pillow applies that of a TIFF itself. EXIF data after the pixels of a PNG are ignored, as by browsers:
    `PngImageFile.getexif` would decode the image to find them.
    """
    if isinstance(image, TiffImageFile):
        return Orientation(), False
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            # `image.getexif()` returns what was parsed on opening, without its warnings.
            exif = PillowImage.Exif()
            exif.load(image.info.get("exif", b""))
            other = PillowImage.Image.getexif(image)  # from XMP, or from text in a PNG
            value = exif.get(_EXIF_ORIENTATION, other.get(_EXIF_ORIENTATION))
    except Exception as error:
        if is_exhausted(error):
            raise
        return Orientation(), True
    orientation = exif_orientation(value) if isinstance(value, int) else None
    return orientation or Orientation(), value is None and bool(caught)


def _has_more_images(image: PillowImage.Image) -> bool:
    """Return whether a file is animated or has more pages; previews in a TIFF or an MPO do not count."""
    if image.format == "MPO" or not getattr(image, "is_animated", False):
        return False
    if not isinstance(image, TiffImageFile):
        return True
    try:
        for page in range(1, _MAX_PAGES):
            image.seek(page)
            if not image.tag_v2.get(_TIFF_SUBFILE, 0) & _REDUCED:
                return True
    except EOFError:
        return False
    return False


def _decode(data: bytes, header: ImageHeader, *, grayscale: bool, background: tuple[int, int, int] | None) -> Image:
    if header.bits > 8:
        return header.orientation.apply(_decode_deep(data, grayscale=grayscale, is_float=header.is_float))
    with PillowImage.open(io.BytesIO(data), formats=_FORMATS) as image:
        blended: PillowImage.Image = image
        if background is not None and image.mode == "RGBA":
            blended = PillowImage.alpha_composite(PillowImage.new("RGBA", image.size, background), image)
        return header.orientation.apply(np.asarray(blended.convert("L" if grayscale else "RGB")))


def _decode_deep(data: bytes, *, grayscale: bool, is_float: bool) -> Image:
    """Decode 16 bits per channel or float, which Pillow would reduce to 8; as stored, but a TIFF upright."""
    color = cv2.IMREAD_GRAYSCALE if grayscale else cv2.IMREAD_COLOR
    pixels = decode_image(data, color | cv2.IMREAD_ANYDEPTH | cv2.IMREAD_IGNORE_ORIENTATION)
    if pixels is None or (pixels.dtype.kind != "f" if is_float and grayscale else pixels.dtype != np.uint16):
        raise ValueError("not a 16-bit or float image")
    return np.ascontiguousarray(pixels if grayscale else pixels[..., ::-1], dtype=pixels.dtype)
