"""Depth Anything 3 in float64: any-view and single-image networks, under the published names."""

import torch
from torch.nn import functional

from tests.models.twins import parts as p

BACKBONE = "model.backbone.pretrained"


def table(t, gh, gw, size):
    """Bicubic without antialias; (g + 0.1)/M maps the coordinates. Kept for square images of its own grid."""
    pos = t[f"{BACKBONE}.pos_embed"]
    m = round((pos.shape[1] - 1) ** 0.5)
    if gh * gw == m * m and size[0] == size[1]:
        return pos
    grid = pos[:, 1:].transpose(1, 2).unflatten(2, (m, m))
    grid = functional.interpolate(
        grid, scale_factor=((gh + 0.1) / m, (gw + 0.1) / m), mode="bicubic", align_corners=False
    )
    assert grid.shape[2:] == (gh, gw)
    return torch.cat([pos[:, :1], grid.flatten(2).transpose(1, 2)], 1)


def embed(t, images):
    size = images.shape[-2:]
    tokens = p.patches(t, f"{BACKBONE}.patch_embed", (images - p.MEAN) / p.STD, 14)
    cls = t[f"{BACKBONE}.cls_token"].expand(*tokens.shape[:2], 1, -1)
    return torch.cat([cls, tokens], 2) + table(t, size[0] // 14, size[1] // 14, size)


def reference_view(cls, strategy):
    """Cls [S, C] of one batch entry -> index of the reference view."""
    count = len(cls)
    if count <= 2 or strategy == "first":
        return 0
    if strategy == "middle":
        return count // 2
    unit = cls / cls.norm(dim=-1, keepdim=True)
    cosines = unit @ unit.T
    if strategy == "saddle_sim_range":
        rows = [[float(cosines[min(i, j), max(i, j)]) if i != j else 0.0 for j in range(count)] for i in range(count)]
        ranges = [max(row) - min(row) for row in rows]
        return ranges.index(max(ranges))
    measures = [(cosines.sum(1) - 1) / (count - 1), cls.norm(dim=-1), unit.var(dim=-1)]
    score = sum(((m - m.min()) / (m.max() - m.min() + 1e-8) - 0.5).abs() for m in measures)
    return int(score.argmin())


def normalised(extrinsics):
    """World->camera [B, S, 4, 4] relative to the first view, in units of the lower median distance (at least 0.1).

    The median is that of all views of all batch entries.
    """
    relative = extrinsics @ torch.linalg.inv(extrinsics[:, :1])
    distance = torch.linalg.inv(relative)[..., :3, 3].norm(dim=-1).flatten().sort().values
    relative[..., :3, 3] /= max(float(distance[(len(distance) - 1) // 2]), 0.1)
    return relative


def quaternion(r):
    """Xyzw with w >= 0 of one rotation, by the eigenvector of the greatest eigenvalue."""
    k = torch.zeros(4, 4, dtype=r.dtype)
    k[0, 0], k[1, 1], k[2, 2] = r[0, 0] - r[1, 1] - r[2, 2], r[1, 1] - r[0, 0] - r[2, 2], r[2, 2] - r[0, 0] - r[1, 1]
    k[0, 1] = k[1, 0] = r[1, 0] + r[0, 1]
    k[0, 2] = k[2, 0] = r[2, 0] + r[0, 2]
    k[1, 2] = k[2, 1] = r[2, 1] + r[1, 2]
    k[0, 3] = k[3, 0] = r[2, 1] - r[1, 2]
    k[1, 3] = k[3, 1] = r[0, 2] - r[2, 0]
    k[2, 3] = k[3, 2] = r[1, 0] - r[0, 1]
    k[3, 3] = r.trace()
    q = torch.linalg.eigh(k).eigenvectors[:, -1]
    return -q if q[3] < 0 else q


def camera_tokens(t, extrinsics, k, size, heads):
    poses = torch.linalg.inv(normalised(extrinsics))
    code = torch.zeros(*poses.shape[:2], 9, dtype=poses.dtype)
    for b in range(poses.shape[0]):
        for s in range(poses.shape[1]):
            code[b, s, :3], code[b, s, 3:7] = poses[b, s, :3, 3], quaternion(poses[b, s, :3, :3])
    code[..., 7] = 2 * torch.atan(size[0] / 2 / k[..., 1, 1])
    code[..., 8] = 2 * torch.atan(size[1] / 2 / k[..., 0, 0])
    x = p.norm(t, "model.cam_enc.token_norm", p.feed_forward(t, "model.cam_enc.pose_branch", code), 1e-5)
    i = 0
    while f"model.cam_enc.trunk.{i}.norm1.weight" in t:
        x = p.block(t, f"model.cam_enc.trunk.{i}", x, heads, 1e-5)
        i += 1
    return p.norm(t, "model.cam_enc.trunk_norm", x, 1e-5)


def backbone(t, images, heads, start, levels, strategy, cameras):
    """-> (patch levels [B, S, gh gw, 2C], camera feature [B, S, 2C], reference views)."""
    x = embed(t, images)
    batch, views, count, width = x.shape
    gh, gw = images.shape[-2] // 14, images.shape[-1] // 14
    grid = p.grid_positions(gh, gw, 1)
    shared = torch.cat([torch.zeros(1, 2), torch.ones(gh * gw, 2)]).double()
    reference = [0] * batch
    within = x
    read = []
    for i in range(max(levels) + 1):
        name = f"{BACKBONE}.blocks.{i}"
        if i == start - 1 and cameras is None:
            reference = [reference_view(x[b, :, 0], strategy) for b in range(batch)]
        if i == start:
            x = x.clone()
            for b in range(batch):
                for s in range(views):
                    slot = t[f"{BACKBONE}.camera_token"][0, 0 if s == reference[b] else 1]
                    x[b, s, 0] = slot if cameras is None else cameras[b, s]
        if i >= start and i % 2 == 1:
            positions = shared.repeat(views, 1)
            x = p.block(t, name, x.flatten(1, 2), heads, 1e-6, lambda y, q=positions: p.turned_2d(y, q))
            x = x.unflatten(1, (views, count))
        else:
            x = p.block(t, name, x, heads, 1e-6, (lambda y: p.turned_2d(y, grid)) if i >= start else None)
            within = x
        if i in levels:
            read.append(torch.cat([within, x], -1))
    patch_levels = [
        torch.cat([r[:, :, 1:, :width], p.norm(t, f"{BACKBONE}.norm", r[:, :, 1:, width:], 1e-5)], -1) for r in read
    ]
    return patch_levels, read[-1][:, :, 0], reference


def any_view(t, images, *, heads, start, levels, camera_heads=16, strategy="saddle_balanced", cameras=None):
    """Images [B, S, 3, H, W] in [0, 1], cameras (world->camera, K) or None -> every published output."""
    t, images = p.double(t), images.double()
    batch, views, size = images.shape[0], images.shape[1], images.shape[-2:]
    told = None if cameras is None else camera_tokens(t, cameras[0].double(), cameras[1].double(), size, camera_heads)
    read, feature, reference = backbone(t, images, heads, start, levels, strategy, told)
    grid, aspect = (size[0] // 14, size[1] // 14), size[1] / size[0]
    maps = p.dpt_levels(t, "model.head", [r.flatten(0, 1) for r in read], grid, aspect)
    scratch = "model.head.scratch"
    x = p.conv(t, f"{scratch}.output_conv1", p.dpt_chain(t, "model.head", maps), padding=1)
    x = p.with_uv(p.resize(x, size), aspect)
    x = p.conv(t, f"{scratch}.output_conv2.2", p.conv(t, f"{scratch}.output_conv2.0", x, padding=1).relu())
    rays = p.dpt_chain(t, "model.head", maps, "_aux")
    for j in range(5):
        rays = p.conv(t, f"{scratch}.output_conv1_aux.3.{j}", rays, padding=1)
    rays = p.conv(t, f"{scratch}.output_conv2_aux.3.0", p.with_uv(rays, aspect), padding=1).movedim(1, -1)
    rays = p.norm(t, f"{scratch}.output_conv2_aux.0.2", rays, 1e-5).relu().movedim(-1, 1)
    rays = p.conv(t, f"{scratch}.output_conv2_aux.3.5", rays).movedim(1, -1).unflatten(0, (batch, views))
    y = p.linear(t, "model.cam_dec.backbone.0", feature).relu()
    y = p.linear(t, "model.cam_dec.backbone.2", y).relu()
    code = torch.cat([p.linear(t, f"model.cam_dec.{n}", y) for n in ("fc_t", "fc_qvec", "fc_fov.0")], -1)
    code[..., 7:] = code[..., 7:].relu()
    x = x.unflatten(0, (batch, views))
    return {
        "depth": x[:, :, 0].exp(),
        "depth_conf": 1 + x[:, :, 1].exp(),
        "ray": rays[..., :6],
        "ray_conf": 1 + rays[..., 6].exp(),
        "pose_enc": code,
        "extrinsics": torch.linalg.inv(p.pose_matrix(code))[..., :3, :],
        "intrinsics": p.intrinsics(code, size, 1e-6),
        "reference": torch.tensor(reference),
    }


def single_image(t, images, *, heads, levels):
    """DA3MONO and DA3METRIC: images [B, S, 3, H, W] -> depth and sky [B, S, H, W]."""
    t, images = p.double(t), images.double()
    size = images.shape[-2:]
    x = embed(t, images)
    read = []
    for i in range(max(levels) + 1):
        x = p.block(t, f"{BACKBONE}.blocks.{i}", x, heads, 1e-6)
        if i in levels:
            read.append(p.norm(t, f"{BACKBONE}.norm", x, 1e-5)[:, :, 1:].flatten(0, 1))
    grid = (size[0] // 14, size[1] // 14)
    maps = p.dpt_levels(t, "model.head", read, grid, 1.0, normed=False, position=False)
    x = p.conv(t, "model.head.scratch.output_conv1", p.dpt_chain(t, "model.head", maps), padding=1)
    x = p.resize(x, size)
    out = {}
    for name, key in (("depth", "output_conv2"), ("sky", "sky_output_conv2")):
        y = p.conv(t, f"model.head.scratch.{key}.0", x, padding=1).relu()
        out[name] = p.conv(t, f"model.head.scratch.{key}.2", y)[:, 0].unflatten(0, images.shape[:2])
    return {"depth": out["depth"].exp(), "sky": out["sky"].relu()}
