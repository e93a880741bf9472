"""Random tensors under the published names, of any size."""

import torch

from tests.models.twins.parts import Tensors


class Tiny:
    """Collects random tensors; `small` weights make eps of norms matter."""

    def __init__(self, generator, small):
        self.tensors: Tensors = {}
        self.random, self.small = generator, small

    def put(self, name, *shape, scale=1.0, offset=0.0):
        self.tensors[name] = torch.randn(*shape, generator=self.random) * scale + offset

    def linear(self, name, out, inner, bias=True, scale=1.0):
        self.put(f"{name}.weight", out, inner, scale=scale * inner**-0.5)
        if bias:
            self.put(f"{name}.bias", out, scale=0.1)

    def conv(self, name, out, inner, size, bias=True, transposed=False):
        shape = (inner, out) if transposed else (out, inner)
        fan = inner if transposed else inner * size * size
        self.put(f"{name}.weight", *shape, size, size, scale=fan**-0.5)
        if bias:
            self.put(f"{name}.bias", out, scale=0.1)

    def norm(self, name, width):
        self.put(f"{name}.weight", width, scale=0.2, offset=1.0)
        self.put(f"{name}.bias", width, scale=0.1)

    def token(self, name, *shape):
        self.put(name, *shape, scale=0.02 if self.small else 0.5)

    def patches(self, name, width, channels, patch):
        scale = 0.02 if self.small else 1.0
        self.put(f"{name}.weight", width, channels, patch, patch, scale=scale * (channels * patch * patch) ** -0.5)
        self.put(f"{name}.bias", width, scale=0.1 * scale)

    def block(self, name, width, heads, *, qk=False, layer_scale=True, swiglu=False, masked=None):
        for norm in ("norm1", "norm2"):
            self.norm(f"{name}.{norm}", width)
        self.linear(f"{name}.attn.qkv", 3 * width, width, scale=1.5)
        self.linear(f"{name}.attn.proj", width, width)
        if masked is not None:
            mask = torch.rand(3 * width, generator=self.random) if masked == "random" else torch.ones(3 * width)
            if masked == "keys":
                mask[width : 2 * width] = 0
            self.tensors[f"{name}.attn.qkv.bias_mask"] = mask
        if qk:
            self.norm(f"{name}.attn.q_norm", width // heads)
            self.norm(f"{name}.attn.k_norm", width // heads)
        if swiglu:
            hidden = -(-int(4 * width * 2 / 3) // 8) * 8
            self.linear(f"{name}.mlp.w12", 2 * hidden, width)
            self.linear(f"{name}.mlp.w3", width, hidden)
        else:
            self.linear(f"{name}.mlp.fc1", 4 * width, width)
            self.linear(f"{name}.mlp.fc2", width, 4 * width)
        if layer_scale:
            for scale in ("ls1", "ls2"):
                small = 0.01 if self.small else 0.3
                self.put(f"{name}.{scale}.gamma", width, scale=0.3 * small, offset=small)

    def fusions(self, head, features, suffix=""):
        for k in (1, 2, 3, 4):
            name = f"{head}.scratch.refinenet{k}{suffix}"
            self.conv(f"{name}.out_conv", features, features, 1)
            for unit in ("resConfUnit1", "resConfUnit2")[k == 4 :]:
                self.conv(f"{name}.{unit}.conv1", features, features, 3)
                self.conv(f"{name}.{unit}.conv2", features, features, 3)

    def dpt(self, head, width, features, widths, normed=True):
        if normed:
            self.norm(f"{head}.norm", width)
        for k, out in enumerate(widths):
            self.conv(f"{head}.projects.{k}", out, width, 1)
            self.conv(f"{head}.scratch.layer{k + 1}_rn", features, out, 3, bias=False)
        self.conv(f"{head}.resize_layers.0", widths[0], widths[0], 4, transposed=True)
        self.conv(f"{head}.resize_layers.1", widths[1], widths[1], 2, transposed=True)
        self.conv(f"{head}.resize_layers.3", widths[3], widths[3], 3)
        self.fusions(head, features)


def da3_backbone(tiny, width, depth, heads, start, side, swiglu):
    name = "model.backbone.pretrained"
    tiny.token(f"{name}.cls_token", 1, 1, width)
    tiny.token(f"{name}.pos_embed", 1, side * side + 1, width)
    tiny.patches(f"{name}.patch_embed.proj", width, 3, 14)
    for i in range(depth):
        tiny.block(f"{name}.blocks.{i}", width, heads, qk=0 <= start <= i, swiglu=swiglu)
    tiny.norm(f"{name}.norm", width)


def da3(generator, *, width, depth, heads, start, side, swiglu, features, widths, camera_depth, small, hidden=32):
    tiny = Tiny(generator, small)
    da3_backbone(tiny, width, depth, heads, start, side, swiglu)
    tiny.token("model.backbone.pretrained.camera_token", 1, 2, width)
    tiny.dpt("model.head", 2 * width, features, widths)
    tiny.fusions("model.head", features, "_aux")
    scratch = "model.head.scratch"
    tiny.conv(f"{scratch}.output_conv1", features // 2, features, 3)
    tiny.conv(f"{scratch}.output_conv2.0", hidden, features // 2, 3)
    tiny.conv(f"{scratch}.output_conv2.2", 2, hidden, 1)
    for level in range(4):
        for j in range(5):
            inner, out = (features, features // 2) if j % 2 == 0 else (features // 2, features)
            tiny.conv(f"{scratch}.output_conv1_aux.{level}.{j}", out, inner, 3)
        tiny.conv(f"{scratch}.output_conv2_aux.{level}.0", hidden, features // 2, 3)
        tiny.conv(f"{scratch}.output_conv2_aux.{level}.5", 7, hidden, 1)
    tiny.norm(f"{scratch}.output_conv2_aux.0.2", hidden)
    for place in (0, 2):
        tiny.linear(f"model.cam_dec.backbone.{place}", 2 * width, 2 * width)
    for name, out in (("fc_t", 3), ("fc_qvec", 4), ("fc_fov.0", 2)):
        tiny.linear(f"model.cam_dec.{name}", out, 2 * width)
    tiny.tensors["model.cam_dec.fc_fov.0.bias"] += 0.7
    tiny.linear("model.cam_enc.pose_branch.fc1", width // 2, 9)
    tiny.linear("model.cam_enc.pose_branch.fc2", width, width // 2, scale=0.03 if small else 1.0)
    for i in range(camera_depth):
        tiny.block(f"model.cam_enc.trunk.{i}", width, heads)
    tiny.norm("model.cam_enc.token_norm", width)
    tiny.norm("model.cam_enc.trunk_norm", width)
    return tiny.tensors


def da3_mono(generator, *, width, depth, heads, side, features, widths, small):
    tiny = Tiny(generator, small)
    da3_backbone(tiny, width, depth, heads, -1, side, False)
    tiny.dpt("model.head", width, features, widths, normed=False)
    tiny.conv("model.head.scratch.output_conv1", features // 2, features, 3)
    for name in ("output_conv2", "sky_output_conv2"):
        tiny.conv(f"model.head.scratch.{name}.0", 32, features // 2, 3)
        tiny.conv(f"model.head.scratch.{name}.2", 1, 32, 1)
    return tiny.tensors


def vggt_omega(
    generator, *, width, encoder_depth, encoder_heads, depth, heads, registers, storage, camera_depth, features,
    widths, masked, small
):  # fmt: skip
    tiny = Tiny(generator, small)
    name = "aggregator.patch_embed"
    tiny.token(f"{name}.cls_token", 1, 1, width)
    tiny.token(f"{name}.storage_tokens", 1, storage, width)
    tiny.token(f"{name}.mask_token", 1, width)
    tiny.patches(f"{name}.patch_embed.proj", width, 3, 16)
    for i in range(encoder_depth):
        tiny.block(f"{name}.blocks.{i}", width, encoder_heads, masked=masked)
    tiny.norm(f"{name}.norm", width)
    for place, count in ((f"{name}.rope_embed", encoder_heads), ("aggregator.rope_embed", heads)):
        quarter = width // count // 4
        tiny.tensors[f"{place}.periods"] = 100.0 ** (torch.arange(quarter) / quarter)
    tiny.token("aggregator.camera_token", 1, 2, 1, width)
    tiny.token("aggregator.register_token", 1, 2, registers, width)
    for i in range(depth):
        for step in ("frame_blocks", "inter_frame_blocks"):
            tiny.block(f"aggregator.{step}.{i}", width, heads, qk=True, masked=masked)
    tiny.norm("camera_head.token_norm", 2 * width)
    for i in range(camera_depth):
        tiny.block(f"camera_head.trunk.{i}", 2 * width, 1, masked=masked)
    tiny.norm("camera_head.trunk_norm", 2 * width)
    tiny.linear("camera_head.camera_branch.0", width, 2 * width)
    tiny.linear("camera_head.camera_branch.2", 9, width)
    tiny.dpt("dense_head", 2 * width, features, widths)
    tiny.conv("dense_head.proj", 16, features, 1)
    tiny.conv("dense_head.proj_conf", 16, features, 1)
    return tiny.tensors


def dinov2(tiny, name, width, depth, heads, side, channels):
    tiny.token(f"{name}.cls_token", 1, 1, width)
    tiny.token(f"{name}.pos_embed", 1, side * side + 1, width)
    tiny.token(f"{name}.register_tokens", 1, 4, width)
    tiny.patches(f"{name}.patch_embed.proj", width, channels, 14)
    for i in range(depth):
        tiny.block(f"{name}.blocks.{i}", width, heads)
    tiny.norm(f"{name}.norm", width)


def pi3x(
    generator, *, width, encoder_depth, encoder_heads, depth, heads, inject_heads, injections, registers, decoder,
    decoder_heads, decoder_depth, camera_width, metric, metric_depth, metric_out, upsampling, side, small, last=32
):  # fmt: skip
    tiny = Tiny(generator, small)
    dinov2(tiny, "encoder", width, encoder_depth, encoder_heads, side, 3)
    dinov2(tiny, "depth_encoder", width, encoder_depth, encoder_heads, side, 2)
    tiny.token("depth_emb", 1, 1, width)
    tiny.patches("ray_embed.proj", width, 2, 14)
    tiny.token("register_token", 1, 1, registers, width)
    tiny.tensors["image_mean"] = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
    tiny.tensors["image_std"] = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
    for i in range(depth):
        tiny.block(f"decoder.{i}", width, heads, qk=True)
    for i in range(injections):
        tiny.block(f"pose_inject_blk.{i}", width, inject_heads, qk=True)
    for name, out in (("point", decoder), ("conf", decoder), ("camera", camera_width)):
        tiny.linear(f"{name}_decoder.projects", decoder, 2 * width)
        for i in range(decoder_depth):
            tiny.block(f"{name}_decoder.blocks.{i}", decoder, decoder_heads, layer_scale=False)
        tiny.linear(f"{name}_decoder.linear_out", out, decoder)
    for name, outputs in (("point_head", (2, 1)), ("conf_head", (1,))):
        inner = decoder
        for k, out in enumerate(upsampling):
            stage = f"{name}.upsample_blocks.{k}"
            tiny.conv(f"{stage}.0.0", out, inner + 2, 2, transposed=True)
            tiny.conv(f"{stage}.0.1", out, out, 3)
            for j in (1, 2):
                tiny.norm(f"{stage}.{j}.layers.0", out)
                tiny.conv(f"{stage}.{j}.layers.2", 2 * out, out, 3)
                tiny.norm(f"{stage}.{j}.layers.3", 2 * out)
                tiny.conv(f"{stage}.{j}.layers.5", out, 2 * out, 3)
            inner = out
        for j, out in enumerate(outputs):
            tiny.conv(f"{name}.output_block.{j}.0", last, inner + 2, 3)
            tiny.conv(f"{name}.output_block.{j}.2", out, last, 1)
    for k in range(2):
        for j in (1, 2, 3):
            tiny.linear(f"camera_head.res_conv.{k}.res_conv{j}", camera_width, camera_width)
    for place in (0, 2):
        tiny.linear(f"camera_head.more_mlps.{place}", camera_width, camera_width)
    tiny.linear("camera_head.fc_t", 3, camera_width)
    tiny.linear("camera_head.fc_rot", 9, camera_width)
    tiny.tensors["camera_head.fc_rot.bias"] += torch.eye(3).flatten()
    tiny.put("metric_token", 1, 1, 2 * width, scale=0.02 if small else 0.5)
    tiny.linear("metric_decoder.projects_x", metric, 2 * width)
    tiny.linear("metric_decoder.projects_y", metric, 2 * width)
    for i in range(metric_depth):
        name = f"metric_decoder.blocks.{i}"
        for norm in ("norm2", "norm_y", "norm3"):
            tiny.norm(f"{name}.{norm}", metric)
        for part in ("q_proj", "k_proj", "v_proj", "proj"):
            tiny.linear(f"{name}.cross_attn.{part}", metric, metric)
        tiny.linear(f"{name}.mlp.fc1", 4 * metric, metric)
        tiny.linear(f"{name}.mlp.fc2", metric, 4 * metric)
    tiny.linear("metric_decoder.linear_out", metric_out, metric)
    tiny.linear("metric_head", 1, metric_out, scale=0.3)
    return tiny.tensors
