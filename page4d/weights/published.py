"""Settings of the published networks, and their reading from JSON files."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from page4d.errors import UsageError
from page4d.io.json_records import config_from_json
from page4d.weights.families.da3 import DA3Settings
from page4d.weights.families.da3_mono import DA3MonoSettings
from page4d.weights.families.da3_nested import DA3NestedSettings
from page4d.weights.families.pi3 import Pi3Settings
from page4d.weights.families.pi3x import Pi3XSettings
from page4d.weights.families.table import FAMILIES
from page4d.weights.families.vggt import VGGTSettings
from page4d.weights.families.vggt_omega import OmegaSettings

_MAX_BYTES = 2**20

DA3AnySettings = DA3Settings | DA3MonoSettings | DA3NestedSettings
Settings = VGGTSettings | Pi3Settings | Pi3XSettings | DA3AnySettings | OmegaSettings
"""Settings of any published network."""

_ADAPTER: TypeAdapter[Settings] = TypeAdapter(Annotated[Settings, Field(discriminator="model")])

PUBLISHED: dict[str, Settings] = {
    family.value: data.network.published[0] for family, data in FAMILIES.items() if data.network is not None
}
"""The first size of each published network, by family."""


def read_settings(path: Path) -> Settings:
    """Read the constructor arguments of a public network from a JSON file.

    Raises:
        UsageError: if the file cannot be read, lacks a field, or holds an unsupported value.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"cannot read --config '{path}': {error.strerror}", "give a JSON file") from error
    return config_from_json(
        _ADAPTER,
        text,
        f"--config '{path}': network",
        'give the constructor arguments of the network as JSON, such as {"model": "vggt", "num_heads": 16, ...}',
    )
