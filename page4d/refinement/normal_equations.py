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
from page4d.refinement.depth_prior import SharedErrors

_OF_A_CAMERA = 8
"""Rotation vector and translation of a small motion in the camera's frame, log focal length, log scale of depth."""

_POSE, _FOCAL, _SCALE = slice(0, 6), 6, 7
_DAMPING = 1e-5
"""Of the diagonal; more would leave focal lengths, which much else makes up for, where they began."""

_LONGEST_STEP = 0.4
_LONGEST_SHARED = 1.0
_OWN_SHARE = 0.1
"""Of the variance of an error of depth: what a pixel does not share with those around it."""

_LEAST_DEPTH = 0.02
"""In units of the scene: what comes nearer to an image's plane, or behind it, is not compared."""

_AT_ONCE = 1 << 15
"""Finds whose slopes are held together: some 50 MB."""


@dataclass(frozen=True, kw_only=True)
class Sightings:
    """Where P pixels of each of N images are found in G other images, and how much each of these finds counts.

    `images` are the others, counted over N; an image that is its own other tells nothing. `sigma_px` is the standard
    deviation of a find whose weight is 1: others' variances are as many times smaller as their weight is larger.
    """

    pixels: Float[Tensor, "B N P 2"]
    images: Int[Tensor, "N G"]
    found: Float[Tensor, "B N G P 2"]
    weight: Float[Tensor, "B N G P"]
    sigma_px: float


@dataclass(frozen=True, kw_only=True)
class Beliefs:
    """Standard deviations of the errors of a guess; 0 means that something is known and stays.

    `position` is in units of the median depth. `log_scale` is of an image's depths together, `log_depth` of each: one
    number, or one for every pixel. Errors of pixels that are `alike` of the image's long side apart correlate by 1/e;
    with 0 every pixel has its own. Errors of poses, focal lengths and scales of images that were `taken_by` the same
    camera correlate by `of_one_camera`, and those of focal lengths of any by `of_one_rig` at least: if one view is
    wrongly taken for narrow, so are others. If nobody knows who took them, every image has its own.
    """

    rotation_rad: float = 0.3
    position: float = 0.3
    log_focal: float = 0.15
    log_scale: float = 0.2
    log_depth: float | Float[Tensor, "B N P"] = 0.25
    alike: float = 0.0
    of_one_camera: float = 0.0
    of_one_rig: float = 0.0
    taken_by: Int[Tensor, " N"] | None = None


class Guess(NamedTuple):
    """What is adjusted; the first image's pose is the world's frame.

    `shared` are errors of depth that neighbours share, at the nodes of `SharedErrors` and in standard deviations;
    `log_depth` is without them and without the scale.
    """

    rotation: Float[Tensor, "B N 3 3"]
    translation: Float[Tensor, "B N 3"]
    log_focal: Float[Tensor, "B N"]
    log_scale: Float[Tensor, "B N"]
    log_depth: Float[Tensor, "B N P"]
    shared: Float[Tensor, "B N M"]


class Slopes(NamedTuple):
    """Residuals in px and what they change with: own camera, other camera, own depth."""

    residual: Float[Tensor, "B N G P 2"]
    own: Float[Tensor, "B N G P 2 8"]
    other: Float[Tensor, "B N G P 2 8"]
    depth: Float[Tensor, "B N G P 2"]
    in_front: Bool[Tensor, "B N G P"]


class Own(NamedTuple):
    """What gives pixels their own depths back when the R columns of an image take a step."""

    by_column: Float[Tensor, "B N P R"]
    pull: Float[Tensor, "B N P"]
    curvature: Float[Tensor, "B N P"]

    def deeper(self, step: Float[Tensor, "B N R"]) -> Float[Tensor, "B N P"]:
        """Return by how much logarithms of depth change."""
        return -(self.pull + torch.einsum("bnpr,bnr->bnp", self.by_column, step)) / self.curvature


class Reduced(NamedTuple):
    """What pixels of an image say of its R columns, with what is each pixel's own eliminated.

    Columns are the L = 8 (1 + G) of its camera and others', and the M of errors that pixels share.
    """

    square: Float[Tensor, "B N R R"]
    slope: Float[Tensor, "B N R"]
    own: Own


class Bundle:
    """What does not change while cameras and depths do. Lengths are in units of each scene's median depth.

    `start` is what is believed beforehand.
    """

    def __init__(
        self, cameras: Cameras, depth: Float[Tensor, "B N P"], sightings: Sightings, beliefs: Beliefs
    ) -> None:
        self.cameras, self.sightings = cameras, sightings
        self.unit = depth.double().flatten(1).median(dim=1).values
        length = beliefs.alike * max(cameras.image_size)
        self.errors = SharedErrors(sightings.pixels, cameras.image_size, length)
        pose = cameras.world_to_camera.double()
        nothing = torch.zeros_like(pose[..., 0, 0])
        self.start = Guess(
            rotation=pose[..., :3, :3],
            translation=pose[..., :3, 3] / self.unit[:, None, None],
            log_focal=nothing,
            log_scale=nothing,
            log_depth=(depth.double() / self.unit[:, None, None]).log(),
            shared=depth.new_zeros(*depth.shape[:2], len(self.errors.precision), dtype=torch.float64),
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
        self.belief = _precision(beliefs, torch.where(self.free[-1], sigma[-1], 1.0), len(sigma))
        deviation = torch.as_tensor(beliefs.log_depth, dtype=torch.float64, device=depth.device).expand(depth.shape)
        own_share = _OWN_SHARE if beliefs.alike else 1.0
        self.depth_belief = 1 / (own_share * deviation.square())
        self.reach = deviation * (1 - own_share) ** 0.5
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
        depth = torch.cat([self.some_depth(guess, part) for part in self.parts], dim=-1)
        return depth * self.unit[:, None, None]

    def some_depth(self, guess: Guess, part: slice) -> Float[Tensor, "B N P"]:
        """Return the depths of some of the pixels, in units of the scene's."""
        shared = torch.einsum("bnpm,bnm->bnp", self.sharing(part), guess.shared)
        log_depth: Tensor = guess.log_depth[..., part] + shared + guess.log_scale[..., None]
        return log_depth.exp()

    def sharing(self, part: slice) -> Float[Tensor, "B N P M"]:
        """Return by how much logarithms of depth of some of the pixels change with what they share."""
        sharing: Tensor = self.reach[..., part, None] * self.errors.told(part)
        return sharing

    def cost(self, guess: Guess, kernel: float) -> Float[Tensor, " B"]:
        """Return twice the negative log-likelihood."""
        off = (self.off(guess) * self.free).flatten(1)
        believed = (off @ self.belief * off).sum(dim=1)
        moved = (self.depth_belief * (guess.log_depth - self.start.log_depth).square()).sum(dim=(1, 2))
        shared = ((guess.shared @ self.errors.precision) * guess.shared).sum(dim=(1, 2))
        total: Tensor = believed + moved + shared
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
        depth = self.some_depth(guess, part)
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
        square, slope, own = self.reduced(guess, kernel, self.parts[0])
        owns = [own]
        for part in self.parts[1:]:
            more, steeper, own = self.reduced(guess, kernel, part)
            square, slope = square + more, slope + steeper
            owns.append(own)
        num = self.places.shape[1]  # columns of cameras; those of what pixels share come after them
        believed = self.errors.precision
        stiffness, pull = square[..., num:, num:] + believed, slope[..., num:] + guess.shared @ believed
        back = torch.linalg.solve(stiffness, torch.cat([square[..., num:, :num], pull[..., None]], dim=-1))
        of_cameras = torch.cat([square[..., :num, :num], slope[..., :num, None]], dim=-1)
        of_cameras = of_cameras - square[..., :num, num:] @ back
        step = self.solved(of_cameras[..., :num], of_cameras[..., num], guess)
        moved = step.flatten(1)[:, self.places]
        shared = -(back[..., :num] @ moved[..., None])[..., 0] - back[..., num]
        columns = torch.cat([moved, shared], dim=-1)
        deeper = torch.cat([own.deeper(columns) for own in owns], dim=-1)
        turn = matrix_from_rotation_vector(step[..., :3])
        return Guess(
            rotation=turn @ guess.rotation,
            translation=(turn @ guess.translation[..., None])[..., 0] + step[..., 3:6],
            log_focal=guess.log_focal + step[..., _FOCAL],
            log_scale=guess.log_scale + step[..., _SCALE],
            log_depth=guess.log_depth + deeper.clamp(-_LONGEST_STEP, _LONGEST_STEP),
            shared=guess.shared + shared.clamp(-_LONGEST_SHARED, _LONGEST_SHARED),
        )

    def reduced(self, guess: Guess, kernel: float, part: slice) -> Reduced:
        """Return what some of the pixels say of cameras and of what they share, with their own depths eliminated."""
        slopes = self.slopes(guess, part)
        squared = slopes.residual.square().sum(dim=-1)
        weight = self.precision[..., part] * slopes.in_front / (1 + squared / kernel**2) ** 2  # B N G P
        # Every find moves its own camera and one other. Columns are of the own one, then of all others in turn.
        by_camera = torch.cat([slopes.own, slopes.other], dim=-1)  # B N G P 2 16
        weighed = by_camera * weight[..., None, None]
        pairs = weighed.flatten(3, 4).transpose(-1, -2) @ by_camera.flatten(3, 4)  # B N G 16 16
        pull_of_pairs = (weighed * slopes.residual[..., None]).sum(dim=(3, 4))  # B N G 16
        by_depth = (weighed * slopes.depth[..., None]).sum(dim=4)  # B N G P 16
        told = (weight * slopes.depth.square().sum(dim=-1)).sum(dim=2)
        pull = (weight * (slopes.depth * slopes.residual).sum(dim=-1)).sum(dim=2)
        by_cameras, sharing = _in_columns(by_depth.transpose(2, 3)), self.sharing(part)
        belief = self.depth_belief[..., part]
        curvature, own = told + belief, pull + belief * (guess.log_depth - self.start.log_depth)[..., part]
        # What is told of a pixel moves its own depth first: less than all of it is left for what it shares.
        left, kept = pull - told * own / curvature, (belief / curvature)[..., None] * sharing
        cameras = _square_of(pairs) - (by_cameras / curvature[..., None]).transpose(-1, -2) @ by_cameras
        between = by_cameras.transpose(-1, -2) @ kept  # B N L M
        shared = sharing.transpose(-1, -2) @ (told[..., None] * kept)
        square = torch.cat(
            [torch.cat([cameras, between], dim=-1), torch.cat([between.transpose(-1, -2), shared], dim=-1)], dim=-2
        )
        of_cameras = _in_columns(pull_of_pairs) - torch.einsum("bnpl,bnp->bnl", by_cameras, own / curvature)
        return Reduced(
            square=square,
            slope=torch.cat([of_cameras, torch.einsum("bnpm,bnp->bnm", sharing, left)], dim=-1),
            own=Own(
                by_column=torch.cat([by_cameras, told[..., None] * sharing], dim=-1), pull=own, curvature=curvature
            ),
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
        vector = (vector + (self.off(guess).flatten(1) * free) @ self.belief) * free
        damping = torch.diag_embed(_DAMPING * matrix.diagonal(dim1=1, dim2=2))
        matrix = (matrix + damping + self.belief) * free[:, None] * free + torch.diag(1 - free)
        step: Tensor = -torch.linalg.solve(matrix, vector[..., None])[..., 0]
        return step.clamp(-_LONGEST_STEP, _LONGEST_STEP).reshape(batch, -1, _OF_A_CAMERA)


def _precision(beliefs: Beliefs, sigma: Float[Tensor, " C"], num_images: int) -> Float[Tensor, "NC NC"]:
    """Return the inverse of the covariance of C errors of each of N images; those of one image are independent."""
    itself = torch.eye(num_images).to(sigma)
    correlation = itself.expand(len(sigma), -1, -1).clone()
    if beliefs.taken_by is not None:
        taken_by = beliefs.taken_by.to(sigma.device)
        same = (taken_by[:, None] == taken_by).to(sigma)
        correlation += beliefs.of_one_camera * (same - itself)
        correlation[_FOCAL].clamp_(min=beliefs.of_one_rig)
    of_each = torch.linalg.inv(correlation * sigma[:, None, None].square())
    return torch.diag_embed(of_each.permute(1, 2, 0), dim1=1, dim2=3).flatten(2).flatten(0, 1)


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
