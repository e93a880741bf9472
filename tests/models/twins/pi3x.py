"""Pi3X in float64, with and without known geometry, under the published names."""

import math

import torch
from torch.nn import functional

from tests.models.twins import parts as p


def encoder(t, name, images, heads):
    """DINOv2 with registers: [B, S, c, H, W] -> patch tokens [B, S, gh gw, C]."""
    gh, gw = images.shape[-2] // 14, images.shape[-1] // 14
    x = p.patches(t, f"{name}.patch_embed", images, 14)
    pos = t[f"{name}.pos_embed"]
    m = round((pos.shape[1] - 1) ** 0.5)
    grid = pos[:, 1:].transpose(1, 2).unflatten(2, (m, m))
    if gh * gw != m * m or gh != gw:
        grid = functional.interpolate(grid, size=(gh, gw), mode="bicubic", antialias=True, align_corners=False)
    x = x + grid.flatten(2).transpose(1, 2)
    cls = (t[f"{name}.cls_token"] + pos[:, :1]).expand(*x.shape[:2], -1, -1)
    x = torch.cat([cls, t[f"{name}.register_tokens"].expand(*x.shape[:2], -1, -1), x], 2)
    i = 0
    while f"{name}.blocks.{i}.norm1.weight" in t:
        x = p.block(t, f"{name}.blocks.{i}", x, heads, 1e-6)
        i += 1
    return p.norm(t, f"{name}.norm", x, 1e-6)[:, :, 5:]


def mean_depth(depths):
    """Mean of the valid depths of every batch entry [B], 1 where there is none."""
    return torch.stack([d[d > 0].mean() if (d > 0).any() else torch.ones(()).double() for d in depths])


def ray_image(known, size):
    """x, y of the rays at the centres of all pixels [B, S, 2, H, W]."""
    if "rays" in known:
        r = known["rays"].movedim(-1, 2)
        return r[:, :, :2] / (r[:, :, 2:] + 1e-6)
    v, u = torch.meshgrid(*(torch.arange(n).double() + 0.5 for n in size), indexing="ij")
    pixel = torch.stack([u, v, torch.ones_like(u)])
    return torch.einsum("bsij,jhw->bsihw", torch.linalg.inv(known["intrinsics"]), pixel)[:, :, :2]


def relative_poses(known, mask_depth, mask_pose):
    """Poses camera->world [B, S, 4, 4] -> (as the network takes them, mask in use [B, S])."""
    poses = torch.linalg.inv(known["poses"][:, :1]) @ known["poses"]
    mask = mask_pose.clone()
    for b in range(len(poses)):
        if mask[b].sum() == 1:
            mask[b] = False
        if "depths" in known:
            poses[b, :, :3, 3] /= mean_depth(known["depths"])[b]
        if not mask_depth[b].any() and poses.shape[1] > 1:
            length = poses[b, 1:, :3, 3].norm(dim=-1)
            if length.max() >= 0.02:
                poses[b, :, :3, 3] /= length.mean() + 1e-8
    return poses, mask


def geometry_turned(x, matrix, gh, gw, back=False):
    """X [B, heads, S gh gw, d]: groups of 4 channels by matrix [B, S, 4, 4], the rest by column and row."""
    count, d = x.shape[2:]
    per_view = gh * gw
    out = x.clone()
    sign = -1.0 if back else 1.0
    for n in range(count):
        s, column, row = n // per_view, n % per_view % gw, n % per_view // gw
        for g in range(d // 8):
            out[:, :, n, 4 * g : 4 * g + 4] = torch.einsum(
                "bij,bhj->bhi", matrix[:, s], x[:, :, n, 4 * g : 4 * g + 4]
            )
        for start, place in ((d // 2, column), (3 * d // 4, row)):
            for i in range(d // 8):
                angle = sign * place * 100.0 ** (-i / (d // 8))
                a, b = x[:, :, n, start + i], x[:, :, n, start + d // 8 + i]
                out[:, :, n, start + i] = a * math.cos(angle) + b * math.sin(angle)
                out[:, :, n, start + d // 8 + i] = -a * math.sin(angle) + b * math.cos(angle)
    return out


def pose_injection(t, name, x, poses, mask, heads, grid):
    """Patch tokens x [B, S, gh gw, C] of all frames -> what is added to them."""
    views = x.shape[1]
    flat = p.norm(t, f"{name}.norm1", x, 1e-6).flatten(1, 2)
    q, k, v = (p.heads_of(part, heads) for part in p.linear(t, f"{name}.attn.qkv", flat).chunk(3, -1))
    q, k = p.norm(t, f"{name}.attn.q_norm", q, 1e-5), p.norm(t, f"{name}.attn.k_norm", k, 1e-5)
    camera = torch.linalg.inv(poses)
    q = geometry_turned(q, camera.transpose(-1, -2), *grid)
    k, v = geometry_turned(k, poses, *grid), geometry_turned(v, poses, *grid)
    told = mask.repeat_interleave(x.shape[2], 1)
    out = p.softmax_attention(q, k, v, told[:, None, :, None] & told[:, None, None, :])
    out = geometry_turned(out, camera, *grid, back=True).transpose(1, 2).flatten(-2)
    out = p.linear(t, f"{name}.attn.proj", out).unflatten(1, (views, -1))
    both = p.scaled(t, f"{name}.ls1", out)
    both = both + p.scaled(t, f"{name}.ls2", p.feed_forward(t, f"{name}.mlp", p.norm(t, f"{name}.norm2", x, 1e-6)))
    return both * mask[:, :, None, None]


def frame_decoder(t, name, x, heads, turn):
    x = p.linear(t, f"{name}.projects", x)
    i = 0
    while f"{name}.blocks.{i}.norm1.weight" in t:
        x = p.block(t, f"{name}.blocks.{i}", x, heads, 1e-6, turn)
        i += 1
    return p.linear(t, f"{name}.linear_out", x)


def conv3(t, name, x):
    return p.conv(t, name, functional.pad(x, (1, 1, 1, 1), mode="replicate"))


def group_norm(t, name, x, groups):
    return functional.group_norm(x, groups, t[f"{name}.weight"], t[f"{name}.bias"], 1e-5)


def and_uv(x, aspect):
    return torch.cat([x, torch.stack(p.uv(*x.shape[2:], aspect)).expand(len(x), -1, -1, -1)], 1)


def conv_head(t, name, x, grid, size):
    """Patch tokens [n, gh gw, C] -> one map [n, c, H, W] per output."""
    aspect = size[1] / size[0]
    x = x.transpose(1, 2).unflatten(2, grid)
    for k in range(3):
        stage = f"{name}.upsample_blocks.{k}"
        x = functional.conv_transpose2d(and_uv(x, aspect), t[f"{stage}.0.0.weight"], t[f"{stage}.0.0.bias"], stride=2)
        x = conv3(t, f"{stage}.0.1", x)
        j = 1
        while f"{stage}.{j}.layers.0.weight" in t:
            unit = f"{stage}.{j}.layers"
            y = conv3(t, f"{unit}.2", group_norm(t, f"{unit}.0", x, 1).relu())
            x = x + conv3(t, f"{unit}.5", group_norm(t, f"{unit}.3", y, y.shape[1] // 32).relu())
            j += 1
    x = and_uv(p.resize(x, size, corners=False), aspect)
    out = []
    while f"{name}.output_block.{len(out)}.0.weight" in t:
        last = f"{name}.output_block.{len(out)}"
        out.append(p.conv(t, f"{last}.2", conv3(t, f"{last}.0", x).relu()))
    return out


def camera_poses(t, x):
    """Patch tokens [B, S, n, c] -> camera->world [B, S, 4, 4]."""
    for k in range(2):
        y = x
        for j in (1, 2, 3):
            y = p.linear(t, f"camera_head.res_conv.{k}.res_conv{j}", y).relu()
        x = x + y
    x = x.mean(2)
    x = p.linear(t, "camera_head.more_mlps.2", p.linear(t, "camera_head.more_mlps.0", x).relu()).relu()
    raw = functional.normalize(p.linear(t, "camera_head.fc_rot", x).unflatten(-1, (3, 3)), dim=-1)
    u, _, vt = torch.linalg.svd(raw)
    flip = torch.ones(*raw.shape[:-1], dtype=raw.dtype)
    flip[..., 2] = torch.det(u @ vt)
    pose = torch.eye(4, dtype=x.dtype).repeat(*x.shape[:2], 1, 1)
    pose[..., :3, :3] = u @ (flip[..., None] * vt)
    pose[..., :3, 3] = p.linear(t, "camera_head.fc_t", x)
    return pose


def metric_scale(t, tokens, positions, heads):
    """All tokens [B, S, P, 2C] -> one factor per batch entry."""
    batch, views = tokens.shape[:2]
    x = p.linear(t, "metric_decoder.projects_x", t["metric_token"]).expand(batch, -1, -1)
    context = p.linear(t, "metric_decoder.projects_y", tokens.flatten(1, 2))
    places = positions.repeat(views, 1)
    i = 0
    while f"metric_decoder.blocks.{i}.norm2.weight" in t:
        name = f"metric_decoder.blocks.{i}"
        y = p.norm(t, f"{name}.norm_y", context, 1e-6)
        q = p.heads_of(p.linear(t, f"{name}.cross_attn.q_proj", p.norm(t, f"{name}.norm2", x, 1e-6)), heads)
        k, v = (p.heads_of(p.linear(t, f"{name}.cross_attn.{n}_proj", y), heads) for n in "kv")
        out = p.softmax_attention(q, p.turned_2d(k, places), v).transpose(1, 2).flatten(-2)
        x = x + p.linear(t, f"{name}.cross_attn.proj", out)
        x = x + p.feed_forward(t, f"{name}.mlp", p.norm(t, f"{name}.norm3", x, 1e-6))
        i += 1
    return p.linear(t, "metric_head", p.linear(t, "metric_decoder.linear_out", x))[:, 0, 0].exp()


def forward(
    t, images, *, encoder_heads, heads, decoder_heads, metric_heads, inject_heads=1, inject_after=(), known=None
):
    """Images [B, S, 3, H, W]; known: poses (camera->world), intrinsics or rays, depths, and masks of images."""
    t, images = p.double(t), images.double()
    known = {n: v if v.dtype == torch.bool else v.double() for n, v in (known or {}).items()}
    batch, views, size = images.shape[0], images.shape[1], images.shape[-2:]
    grid = (size[0] // 14, size[1] // 14)
    x = encoder(t, "encoder", (images - p.MEAN) / p.STD, encoder_heads)
    everywhere, nowhere = torch.ones(batch, views).bool(), torch.zeros(batch, views).bool()
    mask_depth = known.get("mask_depth", everywhere) if "depths" in known else nowhere
    if "intrinsics" in known or "rays" in known:
        mask = known.get("mask_ray", everywhere)
        x = x + p.patches(t, "ray_embed", ray_image(known, size), 14) * mask[:, :, None, None]
    if "depths" in known:
        depths = known["depths"].clamp(min=0)
        pair = torch.stack([depths / (mean_depth(depths).view(-1, 1, 1, 1) + 1e-8), (depths > 0).double()], 2)
        added = encoder(t, "depth_encoder", pair, encoder_heads) + t["depth_emb"]
        x = x + added * mask_depth[:, :, None, None]
    poses = mask_pose = None
    if "poses" in known:
        poses, mask_pose = relative_poses(known, mask_depth, known.get("mask_pose", everywhere))

    registers = t["register_token"].shape[2]
    positions = p.grid_positions(*grid, registers)
    x = torch.cat([t["register_token"].expand(batch, views, -1, -1)[:, :, :registers], x], 2)
    i = injected = 0
    while f"decoder.{i}.norm1.weight" in t:
        before = x
        places = positions if i % 2 == 0 else positions.repeat(views, 1)
        turn = lambda y, q=places: p.turned_2d(y, q)  # noqa: E731
        if i % 2 == 0:
            x = p.block(t, f"decoder.{i}", x, heads, 1e-6, turn)
        else:
            x = p.block(t, f"decoder.{i}", x.flatten(1, 2), heads, 1e-6, turn).unflatten(1, (views, -1))
        if i in inject_after:
            if poses is not None and mask_pose.any():
                name = f"pose_inject_blk.{injected}"
                more = pose_injection(t, name, x[:, :, registers:], poses, mask_pose, inject_heads, grid)
                x = torch.cat([x[:, :, :registers], x[:, :, registers:] + more], 2)
            injected += 1
        i += 1
    tokens = torch.cat([before, x], -1)

    turn = lambda y: p.turned_2d(y, positions)  # noqa: E731
    point, conf, camera = (
        frame_decoder(t, f"{n}_decoder", tokens, decoder_heads, turn)[:, :, registers:]
        for n in ("point", "conf", "camera")
    )
    xy, z = conv_head(t, "point_head", point.flatten(0, 1), grid, size)
    z = z.clamp(max=15).exp()
    local = torch.cat([xy * z, z], 1).movedim(1, -1).unflatten(0, (batch, views))
    rays = torch.cat([xy, torch.ones_like(z)], 1).movedim(1, -1).unflatten(0, (batch, views))
    pose = camera_poses(t, camera)
    scale = metric_scale(t, tokens, positions, metric_heads)
    local = local * scale.view(-1, 1, 1, 1, 1)
    pose[..., :3, 3] *= scale.view(-1, 1, 1)
    points = torch.einsum("bsij,bshwj->bshwi", pose[..., :3, :3], local) + pose[..., None, None, :3, 3]
    confidence = (
        conv_head(t, "conf_head", conf.flatten(0, 1), grid, size)[0].movedim(1, -1).unflatten(0, (batch, views))
    )
    return {
        "points": points,
        "local_points": local,
        "conf": confidence,
        "camera_poses": pose,
        "metric": scale,
        "rays": rays / rays.norm(dim=-1, keepdim=True),
    }
