"""Agreement of depth maps between views: planes seen by a small rig, with parts moved off the surface."""

import torch

from page4d.geometry.camera import Cameras
from page4d.geometry.warp import MAX_COMPARED_VIEWS, Agreement, measure_agreement

HEIGHT, WIDTH = 24, 32
DISTANCE = 4.0


def rig_of(num_views: int, spacing: float = 0.3) -> Cameras:
    """Return parallel cameras beside each other that look along z."""
    poses = torch.eye(4, dtype=torch.float64).repeat(num_views, 1, 1)
    poses[:, 0, 3] = -spacing * torch.arange(num_views)
    intrinsics = torch.tensor([[30.0, 0.0, WIDTH / 2], [0.0, 30.0, HEIGHT / 2], [0.0, 0.0, 1.0]], dtype=torch.float64)
    return Cameras(world_to_camera=poses, intrinsics=intrinsics.expand(num_views, 3, 3), image_size=(HEIGHT, WIDTH))


def plane(num_views: int) -> torch.Tensor:
    return torch.full((num_views, HEIGHT, WIDTH), DISTANCE)


def agreement_of(depth: torch.Tensor, known: torch.Tensor | None = None, **options: torch.Tensor) -> Agreement:
    known = torch.ones_like(depth, dtype=torch.bool) if known is None else known
    return measure_agreement(depth, known, rig_of(len(depth)), **options)


def test_views_of_one_plane_confirm_each_other_where_they_overlap() -> None:
    found = agreement_of(plane(3))
    shift = round(30 * 0.3 / DISTANCE)
    assert (found.confirmed[1, :, shift + 1 : -shift - 1] == 2).all()
    assert (found.contradicted == 0).all()
    # The left border of the first view is outside both others.
    assert (found.unseen[0, :, 0] == 2).all()
    assert (found.confirmed + found.contradicted + found.unseen == 2).all()


def test_a_point_in_front_of_what_others_see_is_contradicted() -> None:
    depth = plane(3)
    depth[1, 10:14, 14:18] = DISTANCE / 2
    found = agreement_of(depth)
    assert (found.contradicted[1, 10:14, 14:18] == 2).all()
    assert not found.is_kept[1, 10:14, 14:18].any()
    assert found.contradicted[1].sum() == 2 * 16


def test_a_point_behind_what_others_see_is_unseen_not_contradicted() -> None:
    depth = plane(3)
    depth[1, 10:14, 14:18] = 2 * DISTANCE
    found = agreement_of(depth)
    assert (found.contradicted[1, 10:14, 14:18] == 0).all()
    assert (found.unseen[1, 10:14, 14:18] == 2).all()


def test_pixels_without_depth_count_nothing_and_confirm_nothing() -> None:
    depth, known = plane(2), torch.ones(2, HEIGHT, WIDTH, dtype=torch.bool)
    known[1] = False
    depth[1] = float("nan")
    found = agreement_of(depth, known)
    assert (found.confirmed == 0).all()
    assert (found.contradicted == 0).all()
    assert (found.unseen[0] == 1).all()
    assert (found.unseen[1] == 0).all()


def test_uncertain_depth_is_compared_with_a_wider_tolerance() -> None:
    depth = plane(2)
    depth[1] *= 1.1
    rigid = agreement_of(depth)
    loose = agreement_of(depth, spread=torch.full_like(depth, 0.04))
    assert rigid.confirmed.sum() == 0
    assert loose.confirmed[0, :, 4:-4].float().mean() > 0.9


def test_counts_do_not_depend_on_the_order_of_views() -> None:
    depth = plane(4) * torch.linspace(0.9, 1.1, 4)[:, None, None]
    order = torch.tensor([2, 0, 3, 1])
    known = torch.ones_like(depth, dtype=torch.bool)
    straight = measure_agreement(depth, known, rig_of(4))
    turned = measure_agreement(depth[order], known, rig_of(4)[order])
    for name in ("confirmed", "contradicted", "unseen"):
        assert torch.equal(getattr(straight, name)[order], getattr(turned, name))


def test_batches_of_instants_are_compared_instant_by_instant() -> None:
    depth = torch.stack([plane(3), plane(3)])
    depth[1, 1] *= 0.5
    both = measure_agreement(
        depth, torch.ones_like(depth, dtype=torch.bool), rig_of(3)[None].map(lambda m: m.expand(2, *m.shape[1:]))
    )
    for instant in range(2):
        alone = agreement_of(depth[instant])
        assert torch.equal(both.confirmed[instant], alone.confirmed)
        assert torch.equal(both.contradicted[instant], alone.contradicted)


def test_a_large_rig_compares_the_nearest_views() -> None:
    found = agreement_of(plane(MAX_COMPARED_VIEWS + 4))
    assert int((found.confirmed + found.contradicted + found.unseen).max()) == MAX_COMPARED_VIEWS
