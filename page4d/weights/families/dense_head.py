"""Configuration of a DPT head from its tensors."""

from page4d.networks.config_parts import DPTHeadConfig
from page4d.weights.families.specs import Specs, shape_of


def read_dense_head(specs: Specs, name: str, layers: tuple[int, int, int, int]) -> DPTHeadConfig:
    """Return the configuration of the head whose tensor names begin with `name`, with VGGT's settings elsewhere."""
    first, second, third, fourth = (shape_of(specs, f"{name}.projects.{level}.weight", 4)[0] for level in range(4))
    hidden = f"{name}.scratch.output_conv2.0.weight"  # a head that ends in a pixel shuffle has none
    return DPTHeadConfig(
        layers=layers,
        features=shape_of(specs, f"{name}.scratch.layer1_rn.weight", 4)[0],
        out_channels=(first, second, third, fourth),
        hidden=shape_of(specs, hidden, 4)[0] if hidden in specs else DPTHeadConfig.hidden,
    )
