"""What the heads of a network are, as frozen records."""

from dataclasses import dataclass

from page4d.errors import UsageError

_STRICT = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class CameraHeadConfig:
    """The iterative camera head; it works at twice the width of the trunk."""

    __pydantic_config__ = _STRICT

    trunk_depth: int = 4
    num_heads: int = 16
    num_iterations: int = 4
    mlp_ratio: float = 4.0
    norm_eps: float = 1e-5
    layer_scale: float = 0.01

    def __post_init__(self) -> None:
        if min(self.trunk_depth, self.num_heads, self.num_iterations) < 1:
            raise UsageError("camera head: depth, heads and iterations must be at least 1", "use positive numbers")


@dataclass(frozen=True, kw_only=True)
class DPTHeadConfig:
    """A dense head that reads four layers of the trunk, coarsest last.

    With `fine_dim`, the channels of the encoder's map of half the image's sides, it joins that map and works at its
    size, which is cheaper than full size and keeps edges sharp.
    """

    __pydantic_config__ = _STRICT

    layers: tuple[int, int, int, int] = (4, 11, 17, 23)
    features: int = 256
    out_channels: tuple[int, int, int, int] = (256, 512, 1024, 1024)
    hidden: int = 32
    fine_dim: int = 0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        if list(self.layers) != sorted(set(self.layers)):
            raise UsageError(
                f"dense head: layers {self.layers} are not in rising order", "name four different layers"
            )
        odd = [width for width in (*self.out_channels, self.features // 2) if width <= 0 or width % 4]
        if odd or self.features % 2:
            raise UsageError(
                f"dense head: out_channels {self.out_channels}, features {self.features}",
                "use multiples of 4, and of 8 for features",
            )


@dataclass(frozen=True, kw_only=True)
class MotionHeadConfig:
    """A head that says of every pixel whether it moves, at the size of the encoder's map of half the image's sides.

    It compares `compared` numbers a cell, and colours, between instants; `dim` is its width, `dilations` those of its
    convolutions in turn. `fine_dim` is the encoder's.
    """

    __pydantic_config__ = _STRICT

    dim: int = 32
    compared: int = 16
    dilations: tuple[int, ...] = (1, 2, 4, 8, 1)
    fine_dim: int = 32

    def __post_init__(self) -> None:
        if min(self.dim, self.compared, self.fine_dim, *self.dilations) < 1:
            raise UsageError(
                f"motion head: dim {self.dim}, compared {self.compared}, fine_dim {self.fine_dim}, "
                f"dilations {self.dilations}",
                "use positive numbers",
            )


@dataclass(frozen=True, kw_only=True)
class FrameHeadConfig:
    """Three decoders that look at one image at a time and read the last layer of the trunk, as in Pi3.

    `point_dim` is the width that the decoders of points and confidence hand on, `camera_dim` that of the cameras.
    """

    __pydantic_config__ = _STRICT

    dim: int = 1024
    depth: int = 5
    num_heads: int = 16
    point_dim: int = 1024
    camera_dim: int = 512
    mlp_ratio: float = 4.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if min(self.dim, self.depth, self.num_heads, self.point_dim, self.camera_dim) < 1:
            raise UsageError("frame head: widths, depth and heads must be at least 1", "use positive numbers")
        if self.dim % (4 * self.num_heads):
            raise UsageError(
                f"frame head: width {self.dim} does not give {self.num_heads} heads a width in multiples of 4",
                "change num_heads",
            )
