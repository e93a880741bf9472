"""VGGT-Omega in float64, under the published names."""

import math

import torch
from torch.nn import functional

from tests.models.twins import parts as p


def turn(gh, gw, specials):
    """Rotation of patch tokens by their coordinates, over whole heads (pairs i, i + d/2)."""
    longest = max(gh, gw)

    def turned(x):
        d = x.shape[-1]
        out = x.clone()
        for r in range(gh):
            for c in range(gw):
                n = specials + r * gw + c
                y0, x0 = (r + 0.5) / longest * 2 - 1, (c + 0.5) / longest * 2 - 1
                angles = [2 * math.pi * v * 100.0 ** (-j / (d // 4)) for v in (y0, x0) for j in range(d // 4)]
                angle = torch.tensor(angles, dtype=x.dtype)
                a, b = x[..., n, : d // 2], x[..., n, d // 2 :]
                out[..., n, : d // 2] = a * angle.cos() - b * angle.sin()
                out[..., n, d // 2 :] = b * angle.cos() + a * angle.sin()
        return out

    return turned


def forward(t, images, *, encoder_heads, heads, register_blocks, levels, camera_heads=16):
    """Images [B, S, 3, H, W] in [0, 1] -> depth, confidence and cameras."""
    t, images = p.double(t), images.double()
    batch, views, size = images.shape[0], images.shape[1], images.shape[-2:]
    gh, gw = size[0] // 16, size[1] // 16
    x = p.patches(t, "aggregator.patch_embed.patch_embed", (images - p.MEAN) / p.STD, 16)
    lead = torch.cat([t["aggregator.patch_embed.cls_token"], t["aggregator.patch_embed.storage_tokens"]], 1)
    x = torch.cat([lead.expand(batch, views, -1, -1), x], 2)
    i = 0
    while f"aggregator.patch_embed.blocks.{i}.norm1.weight" in t:
        name = f"aggregator.patch_embed.blocks.{i}"
        x = p.block(t, name, x, encoder_heads, 1e-5, turn(gh, gw, lead.shape[1]))
        i += 1
    x = p.norm(t, "aggregator.patch_embed.norm", x, 1e-5)[:, :, lead.shape[1] :]

    slots = torch.cat([t["aggregator.camera_token"], t["aggregator.register_token"]], 2)[0]
    specials = slots.shape[1]
    lead = torch.stack([slots[0 if s == 0 else 1] for s in range(views)]).expand(batch, -1, -1, -1)
    x = torch.cat([lead, x], 2)
    read = []
    for i in range(max(levels) + 1):
        frame = x = p.block(t, f"aggregator.frame_blocks.{i}", x, heads, 1e-5, turn(gh, gw, specials))
        name = f"aggregator.inter_frame_blocks.{i}"
        if i in register_blocks:
            y = p.block(t, name, x[:, :, :specials].flatten(1, 2), heads, 1e-5).unflatten(1, (views, specials))
            x = torch.cat([y, x[:, :, specials:]], 2)
        else:
            x = p.block(t, name, x.flatten(1, 2), heads, 1e-5).unflatten(1, (views, -1))
        if i in levels:
            read.append(torch.cat([frame, x], -1))

    y = p.norm(t, "camera_head.token_norm", read[-1][:, :, :specials], 1e-5).flatten(1, 2)
    i = 0
    while f"camera_head.trunk.{i}.norm1.weight" in t:
        y = p.block(t, f"camera_head.trunk.{i}", y, camera_heads, 1e-5)
        i += 1
    y = p.norm(t, "camera_head.trunk_norm", y.unflatten(1, (views, specials))[:, :, 0], 1e-5)
    code = p.linear(t, "camera_head.camera_branch.2", functional.gelu(p.linear(t, "camera_head.camera_branch.0", y)))
    code = torch.cat([code[..., :7], code[..., 7:].relu() + 0.01], -1)

    aspect = size[1] / size[0]
    dense = [r[:, :, specials:].flatten(0, 1) for r in read]
    maps = p.dpt_levels(t, "dense_head", dense, (gh, gw), aspect)
    fused = p.with_uv(p.dpt_chain(t, "dense_head", maps, last=1), aspect)
    depth, conf = (
        shuffled(p.conv(t, f"dense_head.{n}", fused)).unflatten(0, (batch, views)) for n in ("proj", "proj_conf")
    )
    return {
        "depth": depth.exp()[..., None],
        "depth_conf": 1 + conf.exp(),
        "pose_enc": code,
        "extrinsics": p.pose_matrix(code)[..., :3, :],
        "intrinsics": p.intrinsics(code, size),
    }


def shuffled(x):
    """[n, 16, h, w] -> [n, 4h, 4w]: channel 4i + j is pixel (i, j) of every 4 x 4 patch."""
    out = torch.zeros(x.shape[0], 4 * x.shape[2], 4 * x.shape[3], dtype=x.dtype)
    for i in range(4):
        for j in range(4):
            out[:, i::4, j::4] = x[:, 4 * i + j]
    return out
