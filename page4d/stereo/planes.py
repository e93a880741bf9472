"""Planes of a static scene, such as floors, tables and walls: found in depth, and fitted to pictures.

Where a surface has little texture, small windows match everywhere; all windows of a plane together determine it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import MIN_DEPTH, Cameras, camera_rays, resize_intrinsics
from page4d.geometry.statistics import MAD_TO_STD
from page4d.geometry.transforms import move_origin
from page4d.geometry.warp import compared_views, ray_warp, sample, window_means
from page4d.networks.layers.execution import on_threads
from page4d.stereo.sweep import Windows, correlate, usable_rates

_LONG_SIDE_PX = 128
"""Planes are fitted to pictures of about this size: their pixels are as wide as the errors of depth."""

_MAX_PLANES, _MAX_PAIRS = 4, 4
"""Planes of a scene, and ordered pairs of views that each is fitted to, those that see most of it."""

_MIN_SHARE = 0.05
"""Smallest share in all pixels of those of a plane that other views see."""

_MIN_GAIN = 0.02
"""Smallest gain in mean correlation on a plane over that at the given depth."""

_MIN_FAR_GAIN, _MIN_FAR_CORRELATION, _FAR_WINDOW = 0.05, 0.4, 13
"""The same gain for pixels at any distance from a plane, their smallest correlation on it, and the side in px of the
windows over which both are averaged."""

_MAX_LOG_FACTOR = 0.9
"""Largest change of their log depth: at grazing angles, planes are at any depth."""

_NUM_TRIPLES, _NUM_COMPARED, _NUM_FITS = 512, 4096, 8
"""Planes through three random pixels of a view, pixels that they are compared with, and robust fits of the best."""

_NUM_SHIFTS, _MAX_SHIFT, _MAX_LOSS = 24, 3.0, 0.05
"""Parallel planes on each side, up to how many standard deviations of depth; a second one has nearly the correlation
of the best, by this loss, beyond others of twice the loss: patterns correlate in every period."""

_NUM_STEPS, _MAX_MOVES = 5, 8
"""Sizes of a step, each half of the one before, and moves by each at most."""

_MIN_VARIANCE = 1e-6
"""Added to variances of colors in [0, 1]: the median over instants has as little noise."""

_MAX_SIGMA = 0.4
"""Largest standard deviation of log depth that counts: pixels of more are near every plane."""

_DEVIATION, _REACH, _MAX_REACH = 2.0, 4.0, 1.5
"""Robust standard deviations up to which a pixel is of a plane: of its color, and of log depth, among the pixels
nearer than `sigma`; and the largest difference in units of `sigma`."""

_WINDOW = 3
"""Side in px of the windows whose mean colors are compared."""

_MIN_COLOR, _MIN_SPREAD = 0.01, 1e-6

Planes = Float[Tensor, "K 4"]
"""Unit normals n and offsets d: n X + d = 0."""


class _Pixels(NamedTuple):
    """Pixels in the world: rays of z = 1, centres of their cameras, and log depth with its standard deviation."""

    rays: Float[Tensor, "*N 3"]
    centers: Float[Tensor, "*N 3"]
    log_depth: Float[Tensor, "*N"]
    sigma: Float[Tensor, "*N"]

    @classmethod
    def of(cls, log_depth: Float[Tensor, "V H W"], sigma: Float[Tensor, "V H W"], cameras: Cameras) -> "_Pixels":
        pose = cameras.camera_to_world.to(log_depth)[:, None, None]
        local = camera_rays(cameras.intrinsics, log_depth.shape[1:]).to(log_depth)
        rays: Tensor = (pose[..., :3, :3] @ local[..., None])[..., 0]
        return cls(rays, pose[..., :3, 3].expand(rays.shape), log_depth, sigma)

    def at(self, chosen: int | Tensor) -> "_Pixels":
        return _Pixels(*(values[chosen] for values in self))

    @property
    def points(self) -> Float[Tensor, "*N 3"]:
        return self.centers + self.rays * self.log_depth.exp()[..., None]

    def log_factors(self, planes: Planes) -> Float[Tensor, "*batch"]:
        """Return the log factors [K, *N] from the depth to planes; infinite where these are behind."""
        distance = -(self.centers @ planes[:, :3].mT + planes[:, 3]) / (self.rays @ planes[:, :3].mT)
        found = torch.where(distance > 0, distance.log() - self.log_depth[..., None], torch.inf)
        return found.movedim(-1, 0).contiguous()


@on_threads(1)
@torch.no_grad()
def move_onto_planes(
    log_depth: Float[Tensor, "V H W"],
    known: Bool[Tensor, "V H W"],
    sigma: Float[Tensor, "V H W"],
    images: Float[Tensor, "V 3 H W"],
    cameras: Cameras,
) -> Float[Tensor, "V H W"]:
    """Return log depth that follows the planes which several of the views see; for cameras [V].

    `sigma` is the standard deviation of the given log depth. Planes are moved to where the pictures of the views
    correlate best, and left out unless they correlate better there than at the given depth, and than elsewhere. Of
    the pixels that are as near as most, a plane has those of equal color in another view, or of its own color where
    no other view sees them. Of pixels at any distance, it has those around which pictures correlate better on it.
    Others, such as things on a table, keep their depth.

    Source: Gallup et al. (2010), "Piecewise Planar and Non-Planar Stereo for Urban Scene Reconstruction", planes of
    depth maps by RANSAC, with photo-consistency for labels; here planes are fitted to the pictures, too.
    """
    # Far from the origin single precision is not enough.
    origin = cameras.centers.mean(dim=0)
    cameras = replace(cameras, world_to_camera=move_origin(cameras.world_to_camera, origin))
    sigma, size = sigma.clamp(max=_MAX_SIGMA), (log_depth.shape[1], log_depth.shape[2])
    step = max(1, max(size) // _LONG_SIDE_PX)
    part = (slice(None), *(slice(step // 2, side // step * step, step) for side in size))
    few = [values[part].cpu() for values in (log_depth, sigma, known)]
    scaled = torch.stack([resize_intrinsics(matrix, 1 / step, 1 / step) for matrix in cameras.intrinsics])
    rig = replace(cameras, intrinsics=scaled, image_size=(size[0] // step, size[1] // step)).map(Tensor.cpu)
    pictures = functional.avg_pool2d(images, step).cpu()
    planes = _fitted_planes(_Pixels.of(few[0], few[1], rig), few[2], pictures, rig)
    rows, columns = (torch.arange(side).floor_divide(step).clamp(max=side // step - 1) for side in size)
    moved = log_depth.clone()
    for view in range(len(log_depth) if planes else 0):
        pixels = _Pixels.of(log_depth[[view]], sigma[[view]], cameras[[view]]).at(0)
        least = torch.full_like(pixels.log_depth, torch.inf)
        changes = pixels.log_factors(torch.stack([plane for plane, _ in planes]).to(log_depth))
        for change, (_, pairs) in zip(changes, planes, strict=True):
            residual, others = change.abs() / pixels.sigma, [other for first, other in pairs if first == view]
            within = known[view] & (residual <= 1)
            deviation = _color_deviation(pixels.log_depth + change, within, view, others, images, cameras)
            similar = known[view] & (deviation <= _DEVIATION)
            if bool((within & similar).any()):
                spread = (MAD_TO_STD * residual[within & similar].median()).clamp(min=_MIN_SPREAD)
                cost = (residual / spread).square() + deviation.square()
                own = similar & (residual <= (_REACH * spread).clamp(max=_MAX_REACH)) & (cost < least)
                moved[view] = torch.where(own, pixels.log_depth + change, moved[view])
                least = torch.where(own, cost, least)
        changes = pixels.log_depth + changes - moved[view]
        small = (moved[view][part[1:]].cpu(), changes[:, *part[1:]].cpu())
        best = _best_change(*small, view, few[2], pictures, rig)[rows[:, None], columns].to(known.device)
        change = torch.cat([torch.zeros_like(changes[:1]), changes]).gather(0, best[None])[0]
        # Of the pixels next to one that was compared, those of another surface stay.
        same = (moved[view] - small[0][rows[:, None], columns].to(moved)).abs() <= pixels.sigma
        own = known[view] & same & (change.abs() <= _MAX_LOG_FACTOR)
        moved[view] += torch.where(own, change, 0.0)
    return moved


def _best_change(
    log_depth: Float[Tensor, "H W"],
    changes: Float[Tensor, "K H W"],
    view: int,
    known: Bool[Tensor, "V H W"],
    images: Float[Tensor, "V 3 H W"],
    cameras: Cameras,
) -> Int[Tensor, "H W"]:
    """Return after which change of a view's log depth pictures correlate best at, and around, pixels; 0 for none."""
    windows, depth, size = Windows.of(images[[view]]), log_depth.exp(), (log_depth.shape[0], log_depth.shape[1])
    factors = torch.cat([torch.zeros_like(changes[:1]), changes]).exp().clamp(max=1 / MIN_DEPTH)
    total, count = torch.zeros_like(factors), torch.zeros_like(factors)
    for other in compared_views(cameras, view):
        pair = (cameras[view], cameras[other])
        seen = torch.stack([usable_rates(depth * factor, known[view], *pair, size) > 0 for factor in factors])
        pair = (cameras[[view]], cameras[[other]])
        found = correlate(windows, images[[other]], *pair, depth[None], factors, _MIN_VARIANCE)
        total += found[0].movedim(1, 0) * seen
        count += seen
    correlation = total / count.clamp(min=1)
    around = window_means(correlation, _FAR_WINDOW)
    better = (around > around[0] + _MIN_FAR_GAIN) & (correlation > correlation[0]) & (around > _MIN_FAR_CORRELATION)
    better &= (count > 0) & (count[0] > 0) & (factors.log().abs() <= _MAX_LOG_FACTOR)
    best: Tensor = (around * better).argmax(dim=0)
    return best


def _fitted_planes(
    pixels: _Pixels, known: Bool[Tensor, "V H W"], images: Float[Tensor, "V 3 H W"], cameras: Cameras
) -> list[tuple[Float[Tensor, "4"], list[tuple[int, int]]]]:
    """Return the planes that increase the correlation of pictures, with the pairs of views that were compared."""
    planes, generator, depth = [], torch.Generator().manual_seed(0), pixels.log_depth.exp()
    visible = {
        (view, other): usable_rates(depth[view], known[view], cameras[view], cameras[other], depth.shape[1:]) > 0
        for view in range(len(depth))
        for other in compared_views(cameras, view)
    }
    left = torch.zeros_like(known)
    for (view, _), seen in visible.items():
        left[view] |= seen
    enough = max(3, int(_MIN_SHARE * int(known.sum())))
    for _ in range(_MAX_PLANES):
        if int(left.sum()) < enough:
            break
        first = _most_common(pixels.at(left), left.nonzero()[:, 0], generator)
        chosen = left & (pixels.log_factors(first[None])[0].abs() <= pixels.sigma)
        if int(chosen.sum()) < enough:
            break
        shown = {
            pair: seen & chosen[pair[0]] for pair, seen in visible.items() if bool((seen & chosen[pair[0]]).any())
        }
        pairs = sorted(shown, key=lambda pair: -int(shown[pair].sum()))[:_MAX_PAIRS]
        masks = [(pair, shown[pair]) for pair in pairs]

        def correlation(planes: Planes | None, masks: Sequence[tuple[tuple[int, int], Tensor]] = masks) -> Tensor:
            """Return the mean NCC [K] of the pixels of a plane on planes, or at the given depth."""
            total = torch.zeros(())
            for (view, other), mask in masks:
                factors = torch.ones(1, 1, 1) if planes is None else pixels.at(view).log_factors(planes).exp()
                factors = factors.clamp(max=1 / MIN_DEPTH)
                windows, rig = Windows.of(images[[view]]), (cameras[[view]], cameras[[other]])
                found = correlate(windows, images[[other]], *rig, depth[[view]], factors, _MIN_VARIANCE)
                total = total + (found[0] * mask[:, None]).sum(dim=(0, 2))
            return total / sum(int(mask.sum()) for _, mask in masks)

        near = pixels.at(chosen)
        plane, best = _adjusted(near, correlation)
        if best > float(correlation(None)) + _MIN_GAIN and _is_unique(plane, best, near, correlation):
            planes.append((plane, pairs))
        left &= ~chosen & (pixels.log_factors(plane[None])[0].abs() > pixels.sigma)
    return planes


def _most_common(pixels: _Pixels, views: Int[Tensor, " N"], generator: torch.Generator) -> Float[Tensor, "4"]:
    """Return the plane near most pixels; residuals are those of log depth in standard deviations."""
    points, count = pixels.points, torch.bincount(views)
    first = torch.randint(len(views), (_NUM_TRIPLES,), generator=generator)
    start, number = (count.cumsum(0) - count)[views[first]], count[views[first]]
    second, third = (start + (torch.rand(_NUM_TRIPLES, generator=generator) * number).long() for _ in range(2))
    normals = torch.linalg.cross(points[second] - points[first], points[third] - points[first])
    few = pixels.at(torch.randperm(len(views), generator=generator)[:_NUM_COMPARED])
    planes = _planes(normals, points[first])
    plane = planes[(_weights(few, planes) / few.sigma).sum(dim=1).argmax()]
    for _ in range(_NUM_FITS):
        error = pixels.sigma * pixels.log_depth.exp() * (pixels.rays @ plane[:3])
        weight = _weights(pixels, plane[None])[0].square() / error.square().clamp(min=1e-12)
        center = (weight[:, None] * points).sum(dim=0) / weight.sum().clamp(min=1e-12)
        away = points - center
        plane = _planes(torch.linalg.eigh((away * weight[:, None]).mT @ away)[1][:, 0], center)
    return plane


def _weights(pixels: _Pixels, planes: Planes) -> Float[Tensor, "K N"]:
    return (1 - (pixels.log_factors(planes) / pixels.sigma).square()).clamp(min=0)


def _adjusted(pixels: _Pixels, score: Callable[[Planes], Tensor]) -> tuple[Float[Tensor, "4"], float]:
    """Return the plane near pixels with the highest score, and the score.

    A plane is compared with those moved, or tilted about two axes, by a step in all combinations.
    """
    center = pixels.points.mean(dim=0)
    away = pixels.points - center
    variances, axes = torch.linalg.eigh(away.mT @ away / len(away))
    normal, first, second = axes.mT * torch.cat([torch.ones(1), variances[1:].clamp(min=0).sqrt()])[:, None]
    offset, step = torch.zeros(3), float((pixels.sigma * pixels.log_depth.exp()).median()) / 2
    around = torch.cartesian_prod(*[torch.tensor([0.0, 1.0, -1.0])] * 3)  # no move is the first

    def moved(offsets: Float[Tensor, "K 3"]) -> Planes:
        shift, by_first, by_second = (offsets[:, place, None] * normal for place in range(3))
        return _planes(torch.linalg.cross(first + by_first, second + by_second), center + shift)

    best = 0.0
    for _ in range(_NUM_STEPS):
        for _ in range(_MAX_MOVES):
            scores = score(moved(offset + step * around))
            best, place = float(scores.max()), int(scores.argmax())
            if place == 0:
                break
            offset = offset + step * around[place]
        step /= 2
    return moved(offset[None])[0], best


def _is_unique(plane: Float[Tensor, "4"], best: float, pixels: _Pixels, score: Callable[[Planes], Tensor]) -> bool:
    """Return whether no parallel plane, apart from those next to it, has nearly the best score."""
    shifts = torch.linspace(0, _MAX_SHIFT, _NUM_SHIFTS + 1)[1:] * (pixels.sigma * pixels.log_depth.exp()).median()
    for side in (shifts, -shifts):
        scores = score(plane + functional.pad(side[:, None], (3, 0)))
        if bool(((scores > best - _MAX_LOSS) & (scores.cummin(dim=0).values < best - 2 * _MAX_LOSS)).any()):
            return False
    return True


def _planes(normals: Float[Tensor, "*K 3"], points: Float[Tensor, "*K 3"]) -> Float[Tensor, "*K 4"]:
    normals = functional.normalize(normals, dim=-1)
    return torch.cat([normals, -(normals * points).sum(dim=-1, keepdim=True)], dim=-1)


def _color_deviation(
    log_depth: Float[Tensor, "H W"],
    within: Bool[Tensor, "H W"],
    view: int,
    others: Sequence[int],
    images: Float[Tensor, "V 3 H W"],
    cameras: Cameras,
) -> Float[Tensor, "H W"]:
    """Return by how many standard deviations pixels at a depth differ in color from another view, the most similar.

    Views may differ by a gain per channel. Pixels that none of the others sees are compared with the median color of
    those `within` the plane.
    """
    deviation, size = torch.full_like(log_depth, torch.inf), log_depth.shape
    depth = log_depth.exp().clamp(max=1 / MIN_DEPTH)
    for other in others:
        warp = ray_warp(camera_rays(cameras.intrinsics[view], size), cameras[view], cameras[other]).to(depth)
        warped = warp.at(depth)
        visible = warped.visible(size)
        common, dark = within & visible, images[view] + _MIN_COLOR
        if bool(common.any()):
            found = sample(images[[other]], warped.pixels[None])[0] + _MIN_COLOR
            gain = (found / dark)[:, common].median(dim=1).values[:, None, None]
            found = _in_deviations(found / gain - dark, common)
            deviation = torch.where(visible, found.minimum(deviation), deviation)
    own = within & (deviation <= _DEVIATION)
    if bool(own.any()):
        color = images[view][:, own].median(dim=1).values[:, None, None]
        deviation = deviation.where(deviation.isfinite(), _in_deviations(images[view] - color, own))
    return deviation


def _in_deviations(difference: Float[Tensor, "3 H W"], of: Bool[Tensor, "H W"]) -> Float[Tensor, "H W"]:
    distance = window_means(difference, _WINDOW).abs().mean(dim=0)
    found: Tensor = distance / (MAD_TO_STD * distance[of].median()).clamp(min=_MIN_SPREAD)
    return found
