"""Parts of the published networks in float64, as plain functions on a dict of tensors."""

import math

import torch
from torch.nn import functional

Tensors = dict[str, torch.Tensor]
MEAN = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64).view(3, 1, 1)


def double(tensors):
    return {name: tensor.double() for name, tensor in tensors.items()}


def linear(t, name, x):
    return functional.linear(x, t[f"{name}.weight"], t.get(f"{name}.bias"))


def norm(t, name, x, eps):
    return functional.layer_norm(x, x.shape[-1:], t[f"{name}.weight"], t[f"{name}.bias"], eps)


def conv(t, name, x, **options):
    return functional.conv2d(x, t[f"{name}.weight"], t.get(f"{name}.bias"), **options)


def turned_2d(x, positions):
    """Rotary embedding of x [..., N, d] at positions [N, 2] (y, x): one half of the channels per axis."""
    d = x.shape[-1]
    quarter = d // 4
    out = x.clone()
    for axis in range(2):
        start = axis * d // 2
        for i in range(quarter):
            angle = positions[:, axis] * 100.0 ** (-i / quarter)
            a, b = x[..., start + i], x[..., start + quarter + i]
            out[..., start + i] = a * angle.cos() - b * angle.sin()
            out[..., start + quarter + i] = b * angle.cos() + a * angle.sin()
    return out


def grid_positions(gh, gw, specials, offset=1.0):
    rows = [(0.0, 0.0)] * specials + [(r + offset, c + offset) for r in range(gh) for c in range(gw)]
    return torch.tensor(rows, dtype=torch.float64)


def softmax_attention(q, k, v, mask=None):
    logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf)
    return torch.nan_to_num(logits.softmax(-1)) @ v


def heads_of(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def attention(t, name, x, heads, turn=None):
    """Self-attention over x [..., N, C]; qkv bias times its mask where the file has one."""
    bias = t[f"{name}.qkv.bias"] * t.get(f"{name}.qkv.bias_mask", torch.ones(1, dtype=x.dtype))
    q, k, v = (heads_of(part, heads) for part in functional.linear(x, t[f"{name}.qkv.weight"], bias).chunk(3, -1))
    if f"{name}.q_norm.weight" in t:
        q, k = norm(t, f"{name}.q_norm", q, 1e-5), norm(t, f"{name}.k_norm", k, 1e-5)
    if turn is not None:
        q, k = turn(q), turn(k)
    return linear(t, f"{name}.proj", softmax_attention(q, k, v).transpose(-2, -3).flatten(-2))


def feed_forward(t, name, x):
    if f"{name}.w12.weight" in t:
        gate, value = linear(t, f"{name}.w12", x).chunk(2, -1)
        return linear(t, f"{name}.w3", functional.silu(gate) * value)
    return linear(t, f"{name}.fc2", functional.gelu(linear(t, f"{name}.fc1", x)))


def scaled(t, name, x):
    return x * t[f"{name}.gamma"] if f"{name}.gamma" in t else x


def block(t, name, x, heads, eps, turn=None):
    x = x + scaled(t, f"{name}.ls1", attention(t, f"{name}.attn", norm(t, f"{name}.norm1", x, eps), heads, turn))
    return x + scaled(t, f"{name}.ls2", feed_forward(t, f"{name}.mlp", norm(t, f"{name}.norm2", x, eps)))


def patches(t, name, images, patch):
    """[B, S, c, H, W] -> row-major tokens [B, S, gh gw, C]."""
    tokens = conv(t, f"{name}.proj", images.flatten(0, 1), stride=patch)
    return tokens.flatten(2).transpose(1, 2).unflatten(0, images.shape[:2])


def uv(gh, gw, aspect):
    """Coordinates (u, v) of a map of gh x gw for images of this aspect W/H, each [gh, gw]."""
    spans = aspect / math.sqrt(aspect**2 + 1), 1 / math.sqrt(aspect**2 + 1)
    x = (
        torch.linspace(-1, 1, gw, dtype=torch.float64) * spans[0] * (gw - 1) / gw
        if gw > 1
        else torch.zeros(1).double()
    )
    y = (
        torch.linspace(-1, 1, gh, dtype=torch.float64) * spans[1] * (gh - 1) / gh
        if gh > 1
        else torch.zeros(1).double()
    )
    return x.expand(gh, gw), y[:, None].expand(gh, gw)


def with_uv(x, aspect):
    """Add 0.1 times the sines and cosines of the coordinates to a map [n, C, h, w]."""
    quarter = x.shape[1] // 4
    planes = []
    for coordinate in uv(x.shape[2], x.shape[3], aspect):
        angles = [coordinate * 100.0 ** (-i / quarter) for i in range(quarter)]
        planes += [a.sin() for a in angles] + [a.cos() for a in angles]
    return x + 0.1 * torch.stack(planes)


def resize(x, size, corners=True):
    return functional.interpolate(x, size=size, mode="bilinear", align_corners=corners)


def residual_unit(t, name, x):
    """The textbook one (not that of VGGT)."""
    return x + conv(t, f"{name}.conv2", conv(t, f"{name}.conv1", x.relu(), padding=1).relu(), padding=1)


def fuse(t, name, top, skip, size):
    if skip is not None:
        top = top + residual_unit(t, f"{name}.resConfUnit1", skip)
    top = residual_unit(t, f"{name}.resConfUnit2", top)
    return conv(t, f"{name}.out_conv", resize(top, size))


def dpt_levels(t, head, levels, grid, aspect, normed=True, position=True):
    """Four levels [n, gh gw, C] -> four maps of equal width at 4, 2, 1 and 1/2 times the grid."""
    maps = []
    for k, level in enumerate(levels):
        x = norm(t, f"{head}.norm", level, 1e-5) if normed else level
        x = conv(t, f"{head}.projects.{k}", x.transpose(1, 2).unflatten(2, grid))
        if position:
            x = with_uv(x, aspect)
        name = f"{head}.resize_layers.{k}"
        if k < 2:
            x = functional.conv_transpose2d(x, t[f"{name}.weight"], t[f"{name}.bias"], stride=4 if k == 0 else 2)
        elif k == 3:
            x = conv(t, name, x, stride=2, padding=1)
        maps.append(conv(t, f"{head}.scratch.layer{k + 1}_rn", x, padding=1))
    return maps


def dpt_chain(t, head, maps, suffix="", last=2):
    x = fuse(t, f"{head}.scratch.refinenet4{suffix}", maps[3], None, maps[2].shape[2:])
    x = fuse(t, f"{head}.scratch.refinenet3{suffix}", x, maps[2], maps[1].shape[2:])
    x = fuse(t, f"{head}.scratch.refinenet2{suffix}", x, maps[1], maps[0].shape[2:])
    size = [last * n for n in maps[0].shape[2:]]
    return fuse(t, f"{head}.scratch.refinenet1{suffix}", x, maps[0], size)


def rotation(q):
    """Quaternion xyzw [..., 4], any length -> [..., 3, 3]."""
    x, y, z, w = (q / q.norm(dim=-1, keepdim=True)).unbind(-1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def pose_matrix(encoding):
    pose = torch.eye(4, dtype=encoding.dtype).repeat(*encoding.shape[:-1], 1, 1)
    pose[..., :3, :3] = rotation(encoding[..., 3:7])
    pose[..., :3, 3] = encoding[..., :3]
    return pose


def intrinsics(encoding, size, least=0.0):
    k = torch.zeros(*encoding.shape[:-1], 3, 3, dtype=encoding.dtype)
    k[..., 0, 0] = size[1] / 2 / (encoding[..., 8] / 2).tan().clamp(min=least)
    k[..., 1, 1] = size[0] / 2 / (encoding[..., 7] / 2).tan().clamp(min=least)
    k[..., 0, 2], k[..., 1, 2], k[..., 2, 2] = size[1] / 2, size[0] / 2, 1
    return k
