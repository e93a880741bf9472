"""Ranges of the numbers that describe a network.

They contain every published network, and are checked before anything is built: the shapes of a network within them
are found in seconds, without memory for its parameters.
"""

from typing import Annotated

from pydantic import Field

Width = Annotated[int, Field(ge=1, le=2**16)]
"""Channels of a token or feature map."""

OptionalWidth = Annotated[int, Field(ge=0, le=2**16)]
"""Channels of a part that 0 leaves out."""

Depth = Annotated[int, Field(ge=1, le=256)]
"""Number of layers, blocks or iterations."""

OptionalDepth = Annotated[int, Field(ge=0, le=256)]
"""Number of layers, which may be 0."""

Layer = Annotated[int, Field(ge=0, lt=256)]
"""Index of a layer."""

Side = Annotated[int, Field(ge=1, le=2**14)]
"""Side of an image or patch in pixels."""

Window = Annotated[int, Field(ge=1, le=64)]
"""Side of a window, kernel or reduction in tokens."""

Count = Annotated[int, Field(ge=1, le=2**16)]
"""Number of tokens, landmarks or images."""

OptionalCount = Annotated[int, Field(ge=0, le=1024)]
"""Number of tokens per image in addition to the patches."""

Classes = Annotated[int, Field(ge=1, le=2**20)]
"""Number of classes."""

Ratio = Annotated[float, Field(gt=0, le=64)]
"""Hidden over outer width of an MLP."""

Epsilon = Annotated[float, Field(ge=0, le=1)]
"""Number that a norm adds to a variance."""

RotaryBase = Annotated[float, Field(ge=1, le=1e9)]
"""Base of the wavelengths of rotary positions."""

MAX_STAGES = 8
"""Stages of a hierarchical encoder, or entries of a short list."""
