"""MAE and DINO as training tasks: losses of crops, updates after a step, the released encoder, and its pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image as Picture
from torch import Tensor, nn

from page4d.formats.maps import write_png
from page4d.lab.pretraining.config import PretrainConfig
from page4d.lab.pretraining.data import Crops, Footage, denormalised
from page4d.lab.pretraining.dino import DINOConfig, SelfDistillation
from page4d.lab.pretraining.mae import MAEConfig, MaskedAutoencoder
from page4d.lab.training.checkpoint import EMA
from page4d.lab.training.processes import ProcessGroup
from page4d.lab.training.schedule import PlannedStep
from page4d.networks.encoders.vit import ViT
from page4d.networks.layers.attention import Attention
from page4d.networks.layers.block import MixerBlock, normalize_images
from page4d.plotting.canvas import ATTENTION_MAP, INK, NO_VALUE, blank, colored, font
from page4d.scene.image_file import Image
from page4d.scene.images import resize


@dataclass(frozen=True, kw_only=True)
class PretrainStep(PlannedStep):
    """A step, with the fraction of the run before it."""

    done: float


class MAETask:
    """A masked autoencoder with an EMA of its weights."""

    def __init__(self, config: MAEConfig, average_decay: float, device: torch.device) -> None:
        self.network = MaskedAutoencoder(config).to(device)
        self.average = EMA(self.network, average_decay)

    @property
    def encoder(self) -> ViT:
        """Encoder of the EMA."""
        return self.average.network.encoder

    def modules(self) -> dict[str, nn.Module]:
        """Return the network and its EMA."""
        return {"network": self.network, "average": self.average.network}

    def losses(self, crops: Crops) -> Mapping[str, Tensor]:
        """Return the reconstruction loss of the large crop."""
        (images,) = crops.large
        return {"total": self.network(images, crops.noise).loss}

    def after_step(self, step: PretrainStep, group: ProcessGroup, *, moved: bool) -> None:
        """Update the EMA."""
        del group
        if moved:
            self.average.update(self.network, step.step)


class DINOTask:
    """Self-distillation; the teacher is released."""

    def __init__(self, config: DINOConfig, device: torch.device) -> None:
        self.network = SelfDistillation(config).to(device)
        self._centres: list[Tensor] = []

    @property
    def encoder(self) -> ViT:
        """Encoder of the teacher."""
        return self.network.teacher.encoder

    def modules(self) -> dict[str, nn.Module]:
        """Return student, teacher and centre as one module."""
        return {"network": self.network}

    def losses(self, crops: Crops) -> Mapping[str, Tensor]:
        """Return the distillation loss, and entropy and information of the teacher."""
        output = self.network(crops.large, crops.small)
        self._centres.append(output.centre)
        return {
            "total": output.loss,
            "teacher_entropy": output.teacher_entropy,
            "teacher_information": output.teacher_information,
        }

    def after_step(self, step: PretrainStep, group: ProcessGroup, *, moved: bool) -> None:
        """Update the teacher, and the centre from the batches of all processes."""
        centre = group.average(torch.stack(self._centres).mean(dim=0))
        self._centres.clear()
        if moved:
            self.network.update_teacher(centre, step.done)


PretrainTask = MAETask | DINOTask
"""A network that is trained without labels, and the encoder in it."""


def build_task(config: PretrainConfig, device: torch.device) -> PretrainTask:
    """Build a task with random weights, drawn from the run's seed."""
    torch.manual_seed(config.seed)
    if isinstance(config.method, MAEConfig):
        return MAETask(config.method, config.optimizer.average_decay, device)
    return DINOTask(config.method, device)


_FRAMES = 4
_TILE = 240
_GAP = 8
_TITLE = 26
_SEED = 0
_ATTENTION_SCALE = 2
"""Attention is computed on images of twice the crop size, for a finer grid."""


def draw_pictures(task: PretrainTask, footage: Footage, config: PretrainConfig, folder: Path) -> None:
    """Write `reconstruction.png` or `attention.png` of a few frames, spread over views and time.

    Raises:
        InputError: if a frame cannot be decoded.
        OutputError: if a file cannot be written.
    """
    frames = footage.spread(min(_FRAMES, footage.num_frames))
    if isinstance(task, MAETask):
        images = _center_squares(frames, config.crops.size)
        write_png(folder / "reconstruction.png", np.asarray(reconstruction_sheet(task, images)))
    else:
        images = _center_squares(frames, config.crops.size * _ATTENTION_SCALE)
        write_png(folder / "attention.png", np.asarray(attention_sheet(task.encoder, images)))


@torch.no_grad()
def reconstruction_sheet(task: MAETask, images: Float[Tensor, "F 3 H W"]) -> Picture.Image:
    """Draw the visible patches of every image, the reconstruction, and the image.

    Normalised patches are rescaled by their true mean and standard deviation.
    """
    network = task.average.network
    device = next(network.parameters()).device
    originals = normalize_images(images).to(device)
    rows, columns = network.encoder.grid_of(originals)
    noise = torch.rand(len(originals), rows * columns, generator=torch.Generator().manual_seed(_SEED))
    output = network(originals, noise.to(device))
    grey = normalize_images(torch.tensor(NO_VALUE).float().expand(1, 1, 1, 3).permute(0, 3, 1, 2) / 255).to(device)
    visible = network.mask_images(torch.ones_like(originals), output.masking)
    masked = originals * visible + grey * (1 - visible)
    pictures = [masked, network.reconstruct(originals, output), originals]
    tiles = [[_tile(_pixels(denormalised(picture.cpu()))[row]) for picture in pictures] for row in range(len(images))]
    rescaled = ", true means" if task.network.config.normalise_patches else ""
    return _sheet(tiles, [f"{task.network.config.masked_share:.0%} masked", f"reconstruction{rescaled}", "original"])


def attention_sheet(encoder: ViT, images: Float[Tensor, "F 3 H W"]) -> Picture.Image:
    """Draw the attention of the class token in every image, per head."""
    device = next(encoder.parameters()).device
    attention = class_attention(encoder, normalize_images(images).to(device)).cpu().numpy()
    pixels = _pixels(images)
    tiles = [
        [_tile(image), *(_tile(_over(image, heat)) for heat in heads)]
        for image, heads in zip(pixels, attention, strict=True)
    ]
    return _sheet(tiles, ["frame", *(f"head {number + 1}" for number in range(attention.shape[1]))])


@torch.no_grad()
def class_attention(encoder: ViT, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F heads rows columns"]:
    """Return the attention weights of the class token on the patches in the last block.

    Source: Caron et al. (2021), DINO, figure 1.
    """
    grid = encoder.grid_of(images)
    tokens = encoder.embed(images)
    *earlier, last = encoder.blocks
    for block in earlier:
        tokens = block(tokens)
    assert isinstance(last, MixerBlock)
    assert isinstance(last.attn, Attention)
    projected = torch.unflatten(last.attn.qkv(last.norm1(tokens)), -1, (3, last.attn.num_heads, -1))
    query, key, _ = projected.permute(2, 0, 3, 1, 4)
    logits = torch.einsum("fhd,fhnd->fhn", query[:, :, 0], key) * query.shape[-1] ** -0.5
    return logits.softmax(dim=-1)[..., encoder.config.num_special :].unflatten(-1, grid)


def _center_squares(frames: Sequence[Image], side: int) -> Float[Tensor, "F 3 S S"]:
    """Crop the largest centred square of every frame."""
    images = []
    for frame in frames:
        rows, columns = frame.shape[:2]
        short = min(rows, columns)
        top, left = (rows - short) // 2, (columns - short) // 2
        images.append(resize(np.ascontiguousarray(frame[top : top + short, left : left + short]), (side, side)))
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255


def _over(image: NDArray[np.uint8], heat: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Overlay a heat map, from its minimum to its 99th percentile, on the image in grey."""
    low, high = float(heat.min()), float(np.quantile(heat, 0.99))
    scaled = np.clip((heat - low) / max(high - low, 1e-12), 0, 1)
    smooth = cv2.resize(scaled, image.shape[1::-1], interpolation=cv2.INTER_LINEAR)
    colours = colored(smooth, np.ones_like(smooth, dtype=bool), ATTENTION_MAP).astype(np.float32)
    grey = image.mean(axis=2, keepdims=True)
    return np.asarray(np.clip(0.35 * grey + 0.75 * colours, 0, 255), dtype=np.uint8)


def _pixels(images: Float[Tensor, "F 3 H W"]) -> NDArray[np.uint8]:
    return np.asarray((images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy())


def _tile(pixels: NDArray[np.uint8]) -> Picture.Image:
    enlarged = pixels.shape[0] < _TILE
    return Picture.fromarray(pixels).resize(
        (_TILE, _TILE), Picture.Resampling.BICUBIC if enlarged else Picture.Resampling.LANCZOS
    )


def _sheet(tiles: Sequence[Sequence[Picture.Image]], titles: Sequence[str]) -> Picture.Image:
    """Arrange tiles in rows under column titles."""
    width, height = len(titles) * (_TILE + _GAP) + _GAP, _TITLE + len(tiles) * (_TILE + _GAP) + _GAP
    picture, pen = blank(width, height)
    for column, title in enumerate(titles):
        left = _GAP + column * (_TILE + _GAP)
        pen.text((left, _TITLE / 2 + 2), title, fill=INK, font=font(14), anchor="lm")
        for row, line in enumerate(tiles):
            picture.paste(line[column], (left, _TITLE + row * (_TILE + _GAP)))
    return picture
