"""Random cameras and similarities."""

import torch

from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import Sim3, rigid


def random_rig(seed: int, number: int) -> torch.Tensor:
    """Cameras [number, 4, 4] with random rotations and positions."""
    generator = torch.Generator().manual_seed(seed)
    turns, places = torch.randn(2, number, 3, generator=generator, dtype=torch.float64)
    return rigid(matrix_from_rotation_vector(turns), places)


def disturbed(cameras: torch.Tensor, seed: int, size: float) -> torch.Tensor:
    """Cameras with random perturbations."""
    generator = torch.Generator().manual_seed(seed)
    turns, steps = size * torch.randn(2, *cameras.shape[:-2], 3, generator=generator, dtype=torch.float64)
    return rigid(matrix_from_rotation_vector(turns), steps) @ cameras


def random_similarity(seed: int, scale: float = 0.4) -> Sim3:
    turn, move = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Sim3(
        scale=torch.tensor(scale, dtype=torch.float64), rotation=matrix_from_rotation_vector(turn), translation=move
    )
