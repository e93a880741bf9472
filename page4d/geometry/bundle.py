"""The least squares of bundle adjustment: projections, their slopes, and the reduced system of the cameras."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, normalize_pixels
from page4d.geometry.rigid import rigid
from page4d.geometry.rotation import matrix_from_rotation_vector, rotation_vector_from_matrix

_OF_A_CAMERA = 8
"""Rotation vector and translation of a small motion in the camera's frame, log focal length, log scale of depth."""

_POSE, _FOCAL, _SCALE = slice(0, 6), 6, 7
_DAMPING = 1e-3
_LONGEST_STEP = 0.4
_LEAST_DEPTH = 0.02
"""In units of the scene: what comes nearer to an image's plane, or behind it, is not compared."""

_AT_ONCE = 1 << 15
"""Finds whose slopes are held together: some 50 MB."""


@dataclass(frozen=True, kw_only=True)
class Sightings:
    """Where P pixels of each of N images are found in G other images, and how sure that is, from 0 to 1.

    `images` are the others, counted over N; an image that is its own other tells nothing. `sigma_px` is the standard
    deviation of a sure find.
    """

    pixels: Float[Tensor, "B N P 2"]
    images: Int[Tensor, "N G"]
    found: Float[Tensor, "B N G P 2"]
    weight: Float[Tensor, "B N G P"]
    sigma_px: float


@dataclass(frozen=True, kw_only=True)
class Beliefs:
    """Standard deviations of the errors of a guess; 0 means that something is known and stays.

    `position` is in units of the median depth. `log_scale` is of an image's depths together, `log_depth` of each.
    """

    rotation_rad: float = 0.3
    position: float = 0.3
    log_focal: float = 0.15
    log_scale: float = 0.2
    log_depth: float = 0.25


class Guess(NamedTuple):
    """What is adjusted; the first image's pose is the world's frame."""

    rotation: Float[Tensor, "B N 3 3"]
    translation: Float[Tensor, "B N 3"]
    log_focal: Float[Tensor, "B N"]
    log_scale: Float[Tensor, "B N"]
    log_depth: Float[Tensor, "B N P"]


class Slopes(NamedTuple):
    """Residuals in px and what they change with: own camera, other camera, own depth."""

    residual: Float[Tensor, "B N G P 2"]
    own: Float[Tensor, "B N G P 2 8"]
    other: Float[Tensor, "B N G P 2 8"]
    depth: Float[Tensor, "B N G P 2"]
    in_front: Bool[Tensor, "B N G P"]


class Reduced(NamedTuple):
    """The reduced camera system of an image and its L = 8 (1 + G) columns, and what gives its depths back."""

    square: Float[Tensor, "B N L L"]
    slope: Float[Tensor, "B N L"]
    shared: Float[Tensor, "B N P L"]
    pull: Float[Tensor, "B N P"]
    curvature: Float[Tensor, "B N P"]

    def deeper(self, step: Float[Tensor, "B N L"]) -> Float[Tensor, "B N P"]:
        """Return by how much logarithms of depth change when the cameras take a step."""
        return -(self.pull + torch.einsum("bnpl,bnl->bnp", self.shared, step)) / self.curvature


class Bundle:
    """What does not change while cameras and depths do. Lengths are in units of each scene's median depth.

    `start` is what is believed beforehand.
    """

    def __init__(
        self, cameras: Cameras, depth: Float[Tensor, "B N P"], sightings: Sightings, beliefs: Beliefs
    ) -> None:
        self.cameras, self.sightings = cameras, sightings
        self.unit = depth.double().flatten(1).median(dim=1).values
        pose = cameras.world_to_camera.double()
        nothing = torch.zeros_like(pose[..., 0, 0])
        self.start = Guess(
            rotation=pose[..., :3, :3],
            translation=pose[..., :3, 3] / self.unit[:, None, None],
            log_focal=nothing,
            log_scale=nothing,
            log_depth=(depth.double() / self.unit[:, None, None]).log(),
        )
        intrinsics = cameras.intrinsics.double()
        self.plane = normalize_pixels(sightings.pixels.double(), intrinsics)
        self.affine, self.middle = intrinsics[..., :2, :2], intrinsics[..., :2, 2]
        own = torch.arange(len(sightings.images), device=depth.device)[:, None]
        told = sightings.weight.double() * (sightings.images != own)[None, :, :, None]
        self.precision = told / sightings.sigma_px**2
        self.found = sightings.found.double()
        who = torch.cat([own, sightings.images], dim=1)
        self.places = (who[..., None] * _OF_A_CAMERA + torch.arange(_OF_A_CAMERA, device=depth.device)).flatten(1)
        sigmas = [beliefs.rotation_rad] * 3 + [beliefs.position] * 3 + [beliefs.log_focal, beliefs.log_scale]
        sigma = depth.new_tensor(sigmas, dtype=torch.float64).expand(len(sightings.images), -1).clone()
        sigma[0, _POSE] = 0
        self.free = sigma > 0
        self.belief = torch.where(self.free, sigma, 1.0) ** -2
        self.depth_belief = beliefs.log_depth**-2
        num_pixels = depth.shape[-1]
        at_once = max(1, _AT_ONCE * num_pixels // max(1, self.precision.numel()))
        self.parts = [slice(start, start + at_once) for start in range(0, num_pixels, at_once)]

    def cameras_of(self, guess: Guess) -> Cameras:
        """Return the cameras of a guess, in the unit of those given."""
        intrinsics = self.cameras.intrinsics.double().clone()
        intrinsics[..., :2, :2] *= guess.log_focal.exp()[..., None, None]
        return Cameras(
            world_to_camera=rigid(guess.rotation, guess.translation * self.unit[:, None, None]),
            intrinsics=intrinsics,
            image_size=self.cameras.image_size,
        )

    def depth_of(self, guess: Guess) -> Float[Tensor, "B N P"]:
        """Return the depths of a guess, in the unit of those given."""
        return (guess.log_depth + guess.log_scale[..., None]).exp() * self.unit[:, None, None]

    def cost(self, guess: Guess, kernel: float) -> Float[Tensor, " B"]:
        """Return twice the negative log-likelihood."""
        believed = (self.belief * self.off(guess).square() * self.free).sum(dim=(1, 2))
        moved = (guess.log_depth - self.start.log_depth).square().sum(dim=(1, 2)) * self.depth_belief
        total = believed + moved
        for part in self.parts:
            slopes = self.slopes(guess, part)
            squared = slopes.residual.square().sum(dim=-1)
            limited = torch.where(slopes.in_front, squared / (1 + squared / kernel**2), kernel**2)
            total = total + (self.precision[..., part] * limited).sum(dim=(1, 2, 3))
        return total

    def off(self, guess: Guess) -> Float[Tensor, "B N 8"]:
        """Return how far cameras are from those believed: the motion in the camera's frame, and the logarithms."""
        turned = guess.rotation @ self.start.rotation.transpose(-1, -2)
        shift = guess.translation - (turned @ self.start.translation[..., None])[..., 0]
        return torch.cat(
            [rotation_vector_from_matrix(turned), shift, guess.log_focal[..., None], guess.log_scale[..., None]],
            dim=-1,
        )

    def slopes(self, guess: Guess, part: slice) -> Slopes:
        """Project some of the pixels of each image into the other images and differentiate."""
        others = self.sightings.images
        rotation = guess.rotation[:, others] @ guess.rotation.transpose(-1, -2)[:, :, None]  # B N G 3 3
        shift = guess.translation[:, others] - (rotation @ guess.translation[:, :, None, :, None])[..., 0]
        plane = self.plane[:, :, part] * (-guess.log_focal).exp()[..., None, None]
        depth = (guess.log_depth[..., part] + guess.log_scale[..., None]).exp()
        own = functional.pad(plane, (0, 1), value=1.0) * depth[..., None]  # B N P 3
        there = torch.einsum("bngij,bnpj->bngpi", rotation, own) + shift[:, :, :, None]
        in_front = there[..., 2] > _LEAST_DEPTH
        nearness = 1 / there[..., 2].clamp(min=_LEAST_DEPTH)
        ratio = there[..., :2] * nearness[..., None]
        affine = (self.affine * guess.log_focal.exp()[..., None, None])[:, others]  # B N G 2 2
        centered = torch.einsum("bngij,bngpj->bngpi", affine, ratio)
        residual = centered + self.middle[:, others][:, :, :, None] - self.found[:, :, :, part]
        by_there = torch.cat([affine[:, :, :, None].expand(*ratio.shape, 2), -centered[..., None]], dim=-1)
        by_there = by_there * nearness[..., None, None]  # B N G P 2 3
        by_own = (by_there.flatten(-3, -2) @ rotation).view_as(by_there)
        own = own[:, :, None, :, None]  # B N 1 P 1 3
        by_depth = (by_own * own).sum(dim=-1)
        focal = -(by_own[..., :2] * own[..., :2]).sum(dim=-1)
        return Slopes(
            residual=residual,
            own=torch.cat(
                [torch.linalg.cross(by_own, own), -by_own, focal[..., None], by_depth[..., None]],
                dim=-1,
            ),
            other=torch.cat(
                [
                    torch.linalg.cross(there[..., None, :], by_there),
                    by_there,
                    centered[..., None],
                    torch.zeros_like(centered)[..., None],
                ],
                dim=-1,
            ),
            depth=by_depth,
            in_front=in_front,
        )

    def improved(self, guess: Guess, kernel: float) -> Guess:
        """Take one step of least squares on what the kernel lets count."""
        parts = [self.reduced(guess, kernel, part) for part in self.parts]
        square = torch.stack([part.square for part in parts]).sum(dim=0)
        step = self.solved(square, torch.stack([part.slope for part in parts]).sum(dim=0), guess)
        deeper = torch.cat([part.deeper(step.flatten(1)[:, self.places]) for part in parts], dim=-1)
        turn = matrix_from_rotation_vector(step[..., :3])
        return Guess(
            rotation=turn @ guess.rotation,
            translation=(turn @ guess.translation[..., None])[..., 0] + step[..., 3:6],
            log_focal=guess.log_focal + step[..., _FOCAL],
            log_scale=guess.log_scale + step[..., _SCALE],
            log_depth=guess.log_depth + deeper.clamp(-_LONGEST_STEP, _LONGEST_STEP),
        )

    def reduced(self, guess: Guess, kernel: float, part: slice) -> Reduced:
        """Return what some of the pixels say of the cameras, with their depths eliminated."""
        slopes = self.slopes(guess, part)
        squared = slopes.residual.square().sum(dim=-1)
        weight = self.precision[..., part] * slopes.in_front / (1 + squared / kernel**2) ** 2  # B N G P
        # Every find moves its own camera and one other. Columns are of the own one, then of all others in turn.
        by_camera = torch.cat([slopes.own, slopes.other], dim=-1)  # B N G P 2 16
        weighed = by_camera * weight[..., None, None]
        pairs = weighed.flatten(3, 4).transpose(-1, -2) @ by_camera.flatten(3, 4)  # B N G 16 16
        pull_of_pairs = (weighed * slopes.residual[..., None]).sum(dim=(3, 4))  # B N G 16
        by_depth = (weighed * slopes.depth[..., None]).sum(dim=4)  # B N G P 16
        believed = self.depth_belief * (guess.log_depth - self.start.log_depth)[..., part]
        curvature = (weight * slopes.depth.square().sum(dim=-1)).sum(dim=2) + self.depth_belief
        pull = (weight * (slopes.depth * slopes.residual).sum(dim=-1)).sum(dim=2) + believed
        shared = _in_columns(by_depth.transpose(2, 3))
        square, slope = _square_of(pairs), _in_columns(pull_of_pairs)
        return Reduced(
            square=square - torch.einsum("bnpl,bnpm->bnlm", shared / curvature[..., None], shared),
            slope=slope - torch.einsum("bnpl,bnp->bnl", shared, pull / curvature),
            shared=shared,
            pull=pull,
            curvature=curvature,
        )

    def solved(
        self, square: Float[Tensor, "B N L L"], slope: Float[Tensor, "B N L"], guess: Guess
    ) -> Float[Tensor, "B N 8"]:
        """Add up what the images say of the cameras, add beliefs, and solve for the step of those that are free."""
        batch, size = len(square), self.free.numel()
        rows, columns = self.places[:, :, None], self.places[:, None, :]
        matrix = square.new_zeros(batch, size * size)
        matrix.index_add_(1, (rows * size + columns).flatten(), square.flatten(1))
        matrix = matrix.view(batch, size, size)
        vector = slope.new_zeros(batch, size)
        vector.index_add_(1, self.places.flatten(), slope.flatten(1))
        free = self.free.flatten().to(vector)
        vector = (vector + (self.belief * self.off(guess)).flatten(1)) * free
        believed = self.belief.flatten() + _DAMPING * matrix.diagonal(dim1=1, dim2=2)
        matrix = (matrix + torch.diag_embed(believed)) * free[:, None] * free + torch.diag(1 - free)
        step: Tensor = -torch.linalg.solve(matrix, vector[..., None])[..., 0]
        return step.clamp(-_LONGEST_STEP, _LONGEST_STEP).reshape(batch, -1, _OF_A_CAMERA)


def _in_columns(pairs: Float[Tensor, "*batch G C"]) -> Float[Tensor, "*batch L"]:
    """Put what concerns an image and one of its others in the columns of both."""
    own, other = torch.split(pairs, _OF_A_CAMERA, dim=-1)
    return torch.cat([own.sum(dim=-2), other.flatten(-2)], dim=-1)


def _square_of(pairs: Float[Tensor, "*batch G C C"]) -> Float[Tensor, "*batch L L"]:
    """Do the same with rows and columns: others have nothing in common but the image that looks for them."""
    num_others = pairs.shape[-3]
    square = pairs.new_zeros(*pairs.shape[:-3], 1 + num_others, _OF_A_CAMERA, 1 + num_others, _OF_A_CAMERA)
    own, other = slice(0, _OF_A_CAMERA), slice(_OF_A_CAMERA, None)
    square[..., 0, :, 0, :] = pairs[..., own, own].sum(dim=-3)
    for number in range(num_others):
        of_pair = pairs[..., number, :, :]
        square[..., 0, :, 1 + number, :] = of_pair[..., own, other]
        square[..., 1 + number, :, 0, :] = of_pair[..., other, own]
        square[..., 1 + number, :, 1 + number, :] = of_pair[..., other, other]
    return square.flatten(-4, -3).flatten(-2)
