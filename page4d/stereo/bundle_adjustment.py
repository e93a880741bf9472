"""Bundle adjustment: cameras and depths of pixels from correspondences, around a Gaussian prior on all parameters.

Depths are eliminated (Schur complement). The prior on spatially correlated depth errors is a Gaussian process on a
lattice over the image.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, normalize_pixels
from page4d.geometry.rotation import matrix_from_rotation_vector, rotation_vector_from_matrix
from page4d.geometry.transforms import rigid
from page4d.networks.layers.execution import numbers_at_once

_NODE_SPACING = 1.0
"""In correlation lengths."""


class CorrelatedErrors:
    """Errors of pixels as a linear function of M lattice nodes, by bilinear interpolation.

    Errors of nodes have variance 1 and correlate by exp(-distance / `length_px`); `precision` is the inverse of their
    covariance. A length of 0 gives no nodes.

    Source: Rasmussen & Williams (2006), "Gaussian Processes for Machine Learning", eq. 4.18 (the covariance); Wilson
    & Nickisch (2015), "Kernel Interpolation for Scalable Structured Gaussian Processes", section 4.
    """

    def __init__(self, pixels: Float[Tensor, "*images P 2"], image_size: tuple[int, int], length_px: float) -> None:
        spacing, (height, width) = _NODE_SPACING * length_px, image_size
        nodes = [_nodes(side, spacing) if length_px else pixels.new_zeros(0).double() for side in (width, height)]
        self._weights = [
            _linear_weights(pixels[..., axis].double(), along.to(pixels.device)) for axis, along in enumerate(nodes)
        ]
        places = torch.stack(torch.meshgrid(*nodes, indexing="xy"), dim=-1).flatten(0, 1)
        covariance = torch.exp(-torch.cdist(places, places) / length_px) if length_px else places.new_zeros(0, 0)
        self.precision: Float[Tensor, "M M"] = torch.linalg.inv(covariance).to(pixels.device)

    def weights(self, part: slice) -> Float[Tensor, "*images p M"]:
        """Return the interpolation weights of some of the pixels."""
        across, down = (weights[..., part, :] for weights in self._weights)
        return (down[..., :, None] * across[..., None, :]).flatten(-2)


def _nodes(side: int, spacing: float) -> Float[Tensor, " M"]:
    """Return node positions from 0 to the side of an image, both included."""
    return torch.linspace(0, side, 1 + max(1, math.ceil(side / spacing)), dtype=torch.float64)


def _linear_weights(
    positions: Float[Tensor, "*images P"], nodes: Float[Tensor, " M"]
) -> Float[Tensor, "*images P M"]:
    """Return the linear interpolation weights of positions between nodes."""
    if not len(nodes):
        return positions.new_zeros(*positions.shape, 0)
    step = nodes[1] - nodes[0]
    return functional.relu(1 - (positions[..., None] - nodes).abs() / step)


_CAMERA_PARAMETERS = 8
"""Rotation vector and translation of a motion in the camera frame, log focal length, log scale of depth."""

_POSE, _FOCAL, _SCALE = slice(0, 6), 6, 7
_DAMPING = 1e-5
"""Levenberg-Marquardt damping, in units of the diagonal; more holds focal lengths at their prior mean."""

_MAX_STEP = 0.4
_MAX_ERROR_STEP = 1.0
_INDEPENDENT_VARIANCE = 0.1
"""Fraction of the variance of a depth error that is independent per pixel; the rest is spatially correlated."""

_MIN_DEPTH = 0.02
"""In median depths: residuals of points closer to the target's camera plane, or behind it, are left out."""

_DERIVATIVES = torch.float32
"""Precision of Jacobians and of their products; their rounding is far below the uncertainty of a match, and float64
takes twice the time. Residuals, parameters and sums over images are in float64."""

_MAX_RESIDUALS = 1 << 15
"""Residuals whose Jacobians are held at once: some 25 MB; of fixed cameras, eight times as many."""


@dataclass(frozen=True, kw_only=True)
class Correspondences:
    """Positions of P pixels of each of N images in G target images each, with weights.

    `targets` are indices of images, on the CPU, as sizes are; an image that is its own target has no residuals.
    `sigma_px` is the standard deviation of a position of weight 1; variances are inversely proportional to weights.
    """

    pixels: Float[Tensor, "B N P 2"]
    targets: Int[Tensor, "N G"]
    positions: Float[Tensor, "B N G P 2"]
    weight: Float[Tensor, "B N G P"]
    sigma_px: float

    def of_pixels(self, index: Int[Tensor, "N Q"] | None) -> "Correspondences":
        """Return the correspondences of some pixels of each image; None: of all."""
        if index is None:
            return self
        image = torch.arange(len(index), device=index.device)[:, None]
        positions, weight = (part.transpose(2, 3)[:, image, index] for part in (self.positions, self.weight))
        return replace(
            self,
            pixels=self.pixels[:, image, index],
            positions=positions.transpose(2, 3),
            weight=weight.transpose(2, 3),
        )


@dataclass(frozen=True, kw_only=True)
class Priors:
    """Gaussian prior sigmas around the initial cameras and depths; 0 fixes a parameter.

    `position` is in median depths. `log_scale` is of all depths of an image together, `log_depth` of each: one
    number, or one per pixel. Depth errors correlate by 1/e over `correlation_length`, in units of the image's long
    side; 0 makes them independent. Errors of poses, focal lengths and scales of images with one `camera_index`
    correlate by `same_camera_correlation`, those of focal lengths of any two images by at least `focal_correlation`.
    Without `camera_index` all images are independent.
    """

    rotation_rad: float = 0.3
    position: float = 0.3
    log_focal: float = 0.15
    log_scale: float = 0.2
    log_depth: float | Float[Tensor, "B N P"] = 0.25
    correlation_length: float = 0.0
    same_camera_correlation: float = 0.0
    focal_correlation: float = 0.0
    camera_index: Int[Tensor, " N"] | None = None


class Parameters(NamedTuple):
    """Parameters of an adjustment; the first image's pose is the gauge.

    `errors` are the correlated depth errors at the nodes of `CorrelatedErrors`, in standard deviations; `log_depth`
    excludes them and the scale.
    """

    rotation: Float[Tensor, "B N 3 3"]
    translation: Float[Tensor, "B N 3"]
    log_focal: Float[Tensor, "B N"]
    log_scale: Float[Tensor, "B N"]
    log_depth: Float[Tensor, "B N P"]
    errors: Float[Tensor, "B N M"]


class Projection(NamedTuple):
    """Pixels of source images in the target cameras, with everything that derivatives are made of. Pixels are last.

    `residual` are reprojection errors in px, `source` and `target` the points in the cameras, `centered` their
    positions in the target relative to the principal point.
    """

    residual: Float[Tensor, "B N G 2 P"]
    source: Float[Tensor, "B N one 3 P"]
    target: Float[Tensor, "B N G 3 P"]
    inverse_depth: Float[Tensor, "B N G P"]
    centered: Float[Tensor, "B N G 2 P"]
    rotation: Float[Tensor, "B N G 3 3"]
    affine: Float[Tensor, "B N G 2 2"]

    @property
    def in_front(self) -> Bool[Tensor, "B N G P"]:
        """Whether the point is in front of the target camera."""
        return self.target[..., 2, :] > _MIN_DEPTH

    def jacobians(self) -> Float[Tensor, "B N G 17 2 P"]:
        """Return the derivatives of the residuals by source and target camera (8 rows each), and the residuals.

        The last row of the source is also the derivative by log depth.
        """
        batch, images, targets, _, pixels = self.residual.shape
        rows = self.residual.new_empty(batch, images, targets, 2 * _CAMERA_PARAMETERS + 1, 2, pixels)
        source, target = rows[:, :, :, :_CAMERA_PARAMETERS], rows[:, :, :, _CAMERA_PARAMETERS:-1]
        by_target, near = target[..., 3:6, :, :], self.inverse_depth[..., None, :]
        torch.mul(self.affine.transpose(-1, -2)[..., None], near[..., None, :], out=by_target[..., :2, :, :])
        torch.mul(self.centered, -near, out=by_target[..., 2, :, :])
        by_source = (self.rotation.transpose(-1, -2) @ by_target.flatten(-2)).view(by_target.shape)
        torch.neg(by_source, out=source[..., 3:6, :, :])
        own, there = self.source[..., None, :], self.target[..., None, :]  # B N G 3 1 P
        for axis in range(3):
            after, last = (axis + 1) % 3, (axis + 2) % 3
            _subtract_products(
                source[..., axis, :, :],
                (by_source[..., after, :, :], own[..., last, :, :]),
                (by_source[..., last, :, :], own[..., after, :, :]),
            )
            _subtract_products(
                target[..., axis, :, :],
                (there[..., after, :, :], by_target[..., last, :, :]),
                (there[..., last, :, :], by_target[..., after, :, :]),
            )
        focal, scale = source[..., _FOCAL, :, :], source[..., _SCALE, :, :]
        torch.mul(by_source[..., 0, :, :], -own[..., 0, :, :], out=focal)
        focal.addcmul_(by_source[..., 1, :, :], own[..., 1, :, :], value=-1)
        torch.mul(by_source[..., 2, :, :], own[..., 2, :, :], out=scale)
        scale.sub_(focal)
        target[..., _FOCAL, :, :] = self.centered
        target[..., _SCALE, :, :] = 0
        rows[..., -1, :, :] = self.residual
        return rows

    def depth_jacobians(self) -> Float[Tensor, "B N G 2 2 P"]:
        """Return the derivatives of the residuals by log depth, the last row of the source, and the residuals."""
        turned = self.rotation @ self.source  # how the point in the target moves
        across = torch.addcmul(self.affine @ turned[..., :2, :], self.centered, turned[..., 2:, :], value=-1)
        return torch.stack([across * self.inverse_depth[..., None, :], self.residual], dim=-3)


def _subtract_products(result: Tensor, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> None:
    """Write the product of the first pair minus that of the second one to `result`."""
    torch.mul(*first, out=result)
    result.addcmul_(*second, value=-1)


class DepthElimination(NamedTuple):
    """Back-substitution of eliminated log depths: coupling to the L columns of cameras and to M errors.

    The coupling to errors is `data` times their `weights`. Couplings are in the precision of derivatives.
    """

    coupling: Float[Tensor, "B N L P"]
    data: Float[Tensor, "B N P"]
    weights: Float[Tensor, "B N P M"]
    gradient: Float[Tensor, "B N P"]
    hessian: Float[Tensor, "B N P"]

    def back_substitute(self, step: Float[Tensor, "B N L"], errors: Float[Tensor, "B N M"]) -> Float[Tensor, "B N P"]:
        """Return the steps of log depths that belong to steps of cameras and errors."""
        step, errors = step.to(self.coupling), errors.to(self.weights)
        by_cameras = (step[..., None, :] @ self.coupling)[..., 0, :]
        by_errors = self.data * (self.weights @ errors[..., None])[..., 0]
        return -(self.gradient + by_cameras + by_errors) / self.hessian


class ReducedSystem(NamedTuple):
    """Normal equations of an image after Schur elimination of the depth of each pixel.

    The L = 8 (1 + G) columns of cameras are those of its own and of its targets', the M of errors those of correlated
    depth errors.
    """

    cameras: Float[Tensor, "B N L L"]
    mixed: Float[Tensor, "B N L M"]
    errors: Float[Tensor, "B N M M"]
    camera_gradient: Float[Tensor, "B N L"]
    error_gradient: Float[Tensor, "B N M"]


class NormalEquations:
    """The constants of an adjustment and its Gauss-Newton steps. Lengths are in units of each scene's median depth.

    `start` is the mean of the prior. Cameras with fixed poses and focal lengths have one column, the scale of depth.
    """

    def __init__(
        self, cameras: Cameras, depth: Float[Tensor, "B N P"], correspondences: Correspondences, priors: Priors
    ) -> None:
        self.cameras, self.correspondences = cameras, correspondences
        self.unit = depth.double().flatten(1).median(dim=1).values
        length = priors.correlation_length * max(cameras.image_size)
        self.errors = CorrelatedErrors(correspondences.pixels, cameras.image_size, length)
        pose = cameras.world_to_camera.double()
        zero = torch.zeros_like(pose[..., 0, 0])
        self.start = Parameters(
            rotation=pose[..., :3, :3],
            translation=pose[..., :3, 3] / self.unit[:, None, None],
            log_focal=zero,
            log_scale=zero,
            log_depth=(depth.double() / self.unit[:, None, None]).log(),
            errors=depth.new_zeros(*depth.shape[:2], len(self.errors.precision), dtype=torch.float64),
        )
        intrinsics = cameras.intrinsics.double()
        self.plane = normalize_pixels(correspondences.pixels.double(), intrinsics).transpose(-1, -2)  # B N 2 P
        self.affine, self.principal_point = intrinsics[..., :2, :2], intrinsics[..., :2, 2]
        self.targets = targets = correspondences.targets.to(depth.device)
        own = torch.arange(len(targets), device=depth.device)[:, None]
        weight = correspondences.weight.double() * (targets != own)[None, :, :, None]
        self.precision = weight / correspondences.sigma_px**2
        self.positions = correspondences.positions.double().transpose(-1, -2).contiguous()  # B N G 2 P
        sigmas = [priors.rotation_rad] * 3 + [priors.position] * 3 + [priors.log_focal, priors.log_scale]
        sigma = depth.new_tensor(sigmas, dtype=torch.float64).expand(len(targets), -1).clone()
        sigma[0, _POSE] = 0
        self.free = sigma > 0
        self._is_fixed = not any(sigmas[:_SCALE])
        parameters = torch.arange(_SCALE if self._is_fixed else 0, _CAMERA_PARAMETERS, device=depth.device)
        images = own if self._is_fixed else torch.cat([own, targets], dim=1)
        self.columns = (images[..., None] * _CAMERA_PARAMETERS + parameters).flatten(1)
        self.prior_precision = _camera_precision(priors, torch.where(self.free[-1], sigma[-1], 1.0), len(sigma))
        deviation = torch.as_tensor(priors.log_depth, dtype=torch.float64, device=depth.device).expand(depth.shape)
        independent = _INDEPENDENT_VARIANCE if priors.correlation_length else 1.0
        self.depth_precision = 1 / (independent * deviation.square())
        self.error_sigma = deviation * (1 - independent) ** 0.5
        num_pixels = depth.shape[-1]
        most = numbers_at_once(_MAX_RESIDUALS, depth.device) * (_CAMERA_PARAMETERS if self._is_fixed else 1)
        at_once = max(1, most * num_pixels // max(1, self.precision.numel()))
        self.parts = [slice(start, start + at_once) for start in range(0, num_pixels, at_once)]
        self._kept_weights: dict[torch.dtype, Tensor] = {}

    def cameras_of(self, parameters: Parameters) -> Cameras:
        """Return the cameras, in the unit of the initial ones."""
        intrinsics = self.cameras.intrinsics.double().clone()
        intrinsics[..., :2, :2] *= parameters.log_focal.exp()[..., None, None]
        return Cameras(
            world_to_camera=rigid(parameters.rotation, parameters.translation * self.unit[:, None, None]),
            intrinsics=intrinsics,
            image_size=self.cameras.image_size,
        )

    def depth_of(self, parameters: Parameters) -> Float[Tensor, "B N P"]:
        """Return the depths, in the unit of the initial ones."""
        depth = torch.cat([self._depth(parameters, part) for part in self.parts], dim=-1)
        return depth * self.unit[:, None, None]

    def cost(self, parameters: Parameters, kernel: float) -> Float[Tensor, " B"]:
        """Return twice the negative log posterior, with a robust kernel of this width in px."""
        deviation = (self._camera_deviation(parameters) * self.free).flatten(1)
        cameras = (deviation @ self.prior_precision * deviation).sum(dim=1)
        moved = (self.depth_precision * (parameters.log_depth - self.start.log_depth).square()).sum(dim=(1, 2))
        errors = ((parameters.errors @ self.errors.precision) * parameters.errors).sum(dim=(1, 2))
        total: Tensor = cameras + moved + errors
        for part in self.parts:
            projected = self.project(parameters, part)
            squared = projected.residual.square().sum(dim=-2)
            robust = torch.where(projected.in_front, squared / (1 + squared / kernel**2), kernel**2)
            total = total + (self.precision[..., part] * robust).sum(dim=(1, 2, 3))
        return total

    def project(self, parameters: Parameters, part: slice) -> Projection:
        """Project some of the pixels of each image into its targets."""
        targets = self.targets
        rotation = parameters.rotation[:, targets] @ parameters.rotation.transpose(-1, -2)[:, :, None]  # B N G 3 3
        moved = (rotation @ parameters.translation[:, :, None, :, None])[..., 0]
        shift = parameters.translation[:, targets] - moved
        depth = self._depth(parameters, part)[:, :, None]
        plane = self.plane[..., part] * ((-parameters.log_focal).exp()[..., None, None] * depth)
        source = torch.cat([plane, depth], dim=2)[:, :, None]  # B N 1 3 P
        target = rotation @ source + shift[..., None]
        inverse_depth = target[..., 2, :].clamp(min=_MIN_DEPTH).reciprocal()
        affine = (self.affine * parameters.log_focal.exp()[..., None, None])[:, targets]  # B N G 2 2
        centered = affine @ (target[..., :2, :] * inverse_depth[..., None, :])
        residual = centered + self.principal_point[:, targets][..., None] - self.positions[..., part]
        return Projection(residual, source, target, inverse_depth, centered, rotation, affine)

    def step(self, parameters: Parameters, kernel: float) -> Parameters:
        """Take one robust Gauss-Newton step (IRLS)."""
        system, elimination = self._reduce(parameters, kernel, self.parts[0])
        eliminations = [elimination]
        for part in self.parts[1:]:
            more, elimination = self._reduce(parameters, kernel, part)
            system = ReducedSystem(*(one + other for one, other in zip(system, more, strict=True)))
            eliminations.append(elimination)
        precision = self.errors.precision
        pull = system.error_gradient + parameters.errors @ precision
        right = torch.cat([system.mixed.transpose(-1, -2), pull[..., None]], dim=-1)
        factor, _ = torch.linalg.cholesky_ex(system.errors + precision)
        back = torch.cholesky_solve(right, factor)  # B N M L+1
        eliminated = system.mixed @ back
        step = self._solve(
            system.cameras - eliminated[..., :-1], system.camera_gradient - eliminated[..., -1], parameters
        )
        moved = step.flatten(1)[:, self.columns]
        errors = -(back[..., :-1] @ moved[..., None])[..., 0] - back[..., -1]
        log_depth = torch.cat([part.back_substitute(moved, errors) for part in eliminations], dim=-1)
        found = parameters._replace(
            log_scale=parameters.log_scale + step[..., _SCALE],
            log_depth=parameters.log_depth + log_depth.clamp(-_MAX_STEP, _MAX_STEP),
            errors=parameters.errors + errors.clamp(-_MAX_ERROR_STEP, _MAX_ERROR_STEP),
        )
        if self._is_fixed:
            return found
        turn = matrix_from_rotation_vector(step[..., :3])
        return found._replace(
            rotation=turn @ parameters.rotation,
            translation=(turn @ parameters.translation[..., None])[..., 0] + step[..., 3:6],
            log_focal=parameters.log_focal + step[..., _FOCAL],
        )

    def _depth(self, parameters: Parameters, part: slice) -> Float[Tensor, "B N P"]:
        """Return the depths of some of the pixels, in median depths."""
        errors = (self._error_weights(part) @ parameters.errors[..., None])[..., 0]
        log_depth: Tensor = parameters.log_depth[..., part] + errors + parameters.log_scale[..., None]
        return log_depth.exp()

    def _error_weights(self, part: slice, dtype: torch.dtype = torch.float64) -> Float[Tensor, "B N P M"]:
        """Return the derivatives of log depths of some of the pixels by the correlated errors; kept if of all."""
        if dtype in self._kept_weights:
            return self._kept_weights[dtype]
        weights: Tensor = (self.error_sigma[..., part, None] * self.errors.weights(part)).to(dtype)
        if len(self.parts) == 1:
            self._kept_weights[dtype] = weights
        return weights

    def _camera_deviation(self, parameters: Parameters) -> Float[Tensor, "B N 8"]:
        """Return the deviation of cameras from the prior mean: a motion in the camera frame, and the logarithms."""
        if self._is_fixed:
            return functional.pad(parameters.log_scale[..., None], (_SCALE, 0))
        turned = parameters.rotation @ self.start.rotation.transpose(-1, -2)
        shift = parameters.translation - (turned @ self.start.translation[..., None])[..., 0]
        logarithms = [parameters.log_focal[..., None], parameters.log_scale[..., None]]
        return torch.cat([rotation_vector_from_matrix(turned), shift, *logarithms], dim=-1)

    def _reduce(self, parameters: Parameters, kernel: float, part: slice) -> tuple[ReducedSystem, DepthElimination]:
        """Build the normal equations of some of the pixels and eliminate their independent depths."""
        projected = self.project(parameters, part)
        squared = projected.residual.square().sum(dim=-2)
        weight = self.precision[..., part] * projected.in_front / (1 + squared / kernel**2).square()  # B N G P
        # Every residual depends on the source and one target. Columns are those of the source, then of all targets.
        projected = Projection(*(values.to(_DERIVATIVES) for values in projected))
        jacobians = projected.depth_jacobians() if self._is_fixed else projected.jacobians()  # B N G 17 2 P, or 2 2 P
        weighted = jacobians * weight.to(_DERIVATIVES)[..., None, None, :]
        square = weighted.flatten(-2) @ jacobians.flatten(-2).transpose(-1, -2)  # B N G 17 17
        scale = 0 if self._is_fixed else _SCALE
        depth = jacobians[..., scale, :, :]
        by_depth = weighted[..., 0, :] * depth[..., None, 0, :]
        by_depth.addcmul_(weighted[..., 1, :], depth[..., None, 1, :])  # B N G 17 P
        data, data_gradient = (by_depth[..., row, :].sum(dim=2, dtype=torch.float64) for row in (scale, -1))
        coupling, weights = _in_columns(by_depth[..., :-1, :]), self._error_weights(part, _DERIVATIVES)
        prior = self.depth_precision[..., part]
        hessian = data + prior
        gradient = data_gradient + prior * (parameters.log_depth - self.start.log_depth)[..., part]
        # The independent depth absorbs its part of the data first; the rest acts on the correlated errors.
        rest = data_gradient - data * gradient / hessian
        kept = (prior / hessian).to(_DERIVATIVES)[..., None] * weights
        absorbed = (coupling @ (gradient / hessian).to(_DERIVATIVES)[..., None])[..., 0]
        system = ReducedSystem(
            cameras=_square_in_columns(square[..., :-1, :-1])
            - (coupling / hessian.to(_DERIVATIVES)[..., None, :]) @ coupling.transpose(-1, -2),
            mixed=coupling @ kept,
            errors=(data.to(_DERIVATIVES)[..., None] * weights).transpose(-1, -2) @ kept,
            camera_gradient=_in_columns(square[..., :-1, -1, None])[..., 0] - absorbed,
            error_gradient=(weights.transpose(-1, -2) @ rest.to(_DERIVATIVES)[..., None])[..., 0],
        )
        system = ReducedSystem(*(one.double() for one in system))
        return system, DepthElimination(coupling, data, weights, gradient, hessian)

    def _solve(
        self, hessian: Float[Tensor, "B N L L"], gradient: Float[Tensor, "B N L"], parameters: Parameters
    ) -> Float[Tensor, "B N 8"]:
        """Sum the reduced systems of all images, add the prior, and solve for the step of the free parameters."""
        batch, size = len(hessian), self.free.numel()
        rows, columns = self.columns[:, :, None], self.columns[:, None, :]
        matrix = hessian.new_zeros(batch, size * size)
        matrix.index_add_(1, (rows * size + columns).flatten(), hessian.flatten(1))
        matrix = matrix.view(batch, size, size)
        vector = gradient.new_zeros(batch, size)
        vector.index_add_(1, self.columns.flatten(), gradient.flatten(1))
        free = self.free.flatten().to(vector)
        vector = (vector + (self._camera_deviation(parameters).flatten(1) * free) @ self.prior_precision) * free
        damping = torch.diag_embed(_DAMPING * matrix.diagonal(dim1=1, dim2=2))
        matrix = (matrix + damping + self.prior_precision) * free[:, None] * free + torch.diag(1 - free)
        step: Tensor = -torch.linalg.solve(matrix, vector[..., None])[..., 0]
        return step.clamp(-_MAX_STEP, _MAX_STEP).reshape(batch, -1, _CAMERA_PARAMETERS)


def _camera_precision(priors: Priors, sigma: Float[Tensor, " C"], num_images: int) -> Float[Tensor, "NC NC"]:
    """Return the inverse prior covariance of C parameters of N images; parameters of one image are independent."""
    identity = torch.eye(num_images).to(sigma)
    correlation = identity.expand(len(sigma), -1, -1).clone()
    if priors.camera_index is not None:
        index = priors.camera_index.to(sigma.device)
        same = (index[:, None] == index).to(sigma)
        correlation += priors.same_camera_correlation * (same - identity)
        correlation[_FOCAL].clamp_(min=priors.focal_correlation)
    of_each = torch.linalg.inv(correlation * sigma[:, None, None].square())
    return torch.diag_embed(of_each.permute(1, 2, 0), dim1=1, dim2=3).flatten(2).flatten(0, 1)


def _in_columns(pairs: Float[Tensor, "*batch G C P"]) -> Float[Tensor, "*batch L P"]:
    """Scatter derivatives of (source, target) pairs, or of the source alone, into columns of source and targets."""
    source, target = pairs[..., :_CAMERA_PARAMETERS, :], pairs[..., _CAMERA_PARAMETERS:, :]
    return torch.cat([source.sum(dim=-3), target.flatten(-3, -2)], dim=-2)


def _square_in_columns(pairs: Float[Tensor, "*batch G C C"]) -> Float[Tensor, "*batch L L"]:
    """Scatter Hessians of (source, target) pairs, or of the source alone; blocks between different targets are 0."""
    num_targets = pairs.shape[-3]
    if pairs.shape[-1] == 1:
        return pairs.sum(dim=-3)
    square = pairs.new_zeros(
        *pairs.shape[:-3], 1 + num_targets, _CAMERA_PARAMETERS, 1 + num_targets, _CAMERA_PARAMETERS
    )
    source, target = slice(0, _CAMERA_PARAMETERS), slice(_CAMERA_PARAMETERS, None)
    square[..., 0, :, 0, :] = pairs[..., source, source].sum(dim=-3)
    for number in range(num_targets):
        pair = pairs[..., number, :, :]
        square[..., 0, :, 1 + number, :] = pair[..., source, target]
        square[..., 1 + number, :, 0, :] = pair[..., target, source]
        square[..., 1 + number, :, 1 + number, :] = pair[..., target, target]
    return square.flatten(-4, -3).flatten(-2)


_INITIAL_KERNEL = 0.12
"""Width of the robust kernel at the start, in units of the image's long side."""

_FINAL_KERNEL = 1.0
"""Width of the robust kernel at the end, in standard deviations of a position."""

_NUM_KERNELS = 6
_CONTINUED_KERNELS = (3.0, 0.5, 3)
"""Initial and final width in standard deviations, and number of widths, when continuing an earlier adjustment."""

_STEPS_PER_KERNEL = 2
_MIN_GAIN = 1e-9
"""In units of twice the negative log posterior; smaller gains are rounding."""


@dataclass(frozen=True, kw_only=True)
class BundleAdjustment:
    """Adjusted cameras and depths.

    `parameters` are the same in the parametrization of the adjustment, from which another one can continue.
    """

    cameras: Cameras
    depth: Float[Tensor, "B N P"]
    parameters: Parameters

    def with_focal_of_prior(self) -> "BundleAdjustment":
        """Return the starting point of an adjustment with fixed focal lengths."""
        zero = torch.zeros_like(self.parameters.log_focal)
        return replace(self, parameters=self.parameters._replace(log_focal=zero))


def adjust_bundle(
    cameras: Cameras,
    depth: Float[Tensor, "B N P"],
    correspondences: Correspondences,
    priors: Priors | None = None,
    initial: BundleAdjustment | None = None,
) -> BundleAdjustment:
    """Return the MAP estimate of cameras and depths, with the first pose as gauge.

    `cameras` and `depth` are the prior mean. An `initial` adjustment of the same cameras is the starting point; its
    correspondences are taken to be close, so that the robust kernel starts narrow. Iteratively reweighted least
    squares in float64 with a narrowing kernel; depths are eliminated (Schur complement). Scenes whose cost does not
    fall keep the prior mean.

    Source: Triggs et al. (1999), "Bundle Adjustment", sections 3.3 and 6.1 (robust costs, the reduced camera system);
    the kernel is of Geman & McClure (1987), narrowed as in Black & Rangarajan (1996).
    """
    problem = NormalEquations(cameras, depth, correspondences, priors or Priors())
    sigma_px = correspondences.sigma_px
    if initial is None:
        parameters, final = problem.start, sigma_px * _FINAL_KERNEL
        kernels = _kernels(max(final, _INITIAL_KERNEL * max(cameras.image_size)), final, _NUM_KERNELS)
    else:
        widest, narrowest, number = _CONTINUED_KERNELS
        parameters, kernels = initial.parameters, _kernels(sigma_px * widest, sigma_px * narrowest, number)
    for kernel in kernels:
        for _ in range(_STEPS_PER_KERNEL):
            parameters = problem.step(parameters, kernel)
    before, after = (problem.cost(one, kernels[-1]) for one in (problem.start, parameters))
    better = after < before - _MIN_GAIN
    kept = Parameters(*(choose_scenes(better, new, old) for new, old in zip(parameters, problem.start, strict=True)))
    return BundleAdjustment(cameras=problem.cameras_of(kept), depth=problem.depth_of(kept), parameters=kept)


def _kernels(widest: float, narrowest: float, number: int) -> list[float]:
    """Return kernel widths in px in a decreasing geometric sequence."""
    shares = torch.linspace(0, 1, number, dtype=torch.float64)
    widths: list[float] = (widest * (narrowest / widest) ** shares).tolist()
    return widths


def choose_scenes(which: Bool[Tensor, " B"], first: Tensor, second: Tensor) -> Tensor:
    """Return values [B, ...] of the first for some scenes, and of the second for the rest."""
    return torch.where(which.reshape(-1, *(1,) * (first.ndim - 1)), first, second)
