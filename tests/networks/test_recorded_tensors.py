"""Converted networks reproduce all recorded tensors of the public ones: one table of family, case and run."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from page4d.geometry.transforms import invert_rigid
from page4d.networks.conditioning import NO_CONDITIONING, Conditioning, SizeGroups
from page4d.networks.inputs.known_cameras import camera_encodings, scale_cameras
from page4d.networks.inputs.known_geometry import length_unit
from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.network import ViewTimeNetwork
from page4d.networks.output import NetworkOutput
from page4d.networks.tokens import saddle_scores, select_reference, token_positions
from page4d.weights.families.vggt_omega import by_axis
from tests.keymaps import accounted, converted_network, recorded_config


class Recorder:
    """Records the inputs and outputs of all modules in one forward pass, by name; None if a module did not run."""

    def __init__(self, network: ViewTimeNetwork, images: Tensor, **options: object) -> None:
        self.inputs: dict[str, tuple] = {}
        self.outputs: dict[str, object] = {}
        handles = [module.register_forward_hook(self._keeper(name)) for name, module in network.named_modules()]
        self.output: NetworkOutput = network(images.unsqueeze(1), **options)
        for handle in handles:
            handle.remove()

    def _keeper(self, name: str) -> Callable:
        def keep(_: nn.Module, arguments: tuple, result: object) -> None:
            self.inputs.setdefault(name, arguments)
            self.outputs.setdefault(name, result)

        return keep

    def into(self, name: str) -> Tensor:
        return (self.inputs.get(name) or (None,))[0]

    def of(self, name: str) -> Tensor:
        return self.outputs.get(name)


@dataclass(frozen=True)
class Run:
    """A network with recorded weights, and the recorded tensors of one of its runs."""

    family: str
    name: str
    """Of the run, as in the recording: "" for images alone."""
    network: ViewTimeNetwork
    names: Mapping[str, str]
    """Names of parameters in page4d by the recorded ones."""
    meta: dict
    given: Mapping[str, Tensor]
    mids: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @property
    def images(self) -> Tensor:
        return self.given["images"]

    @property
    def grid(self) -> tuple[int, int]:
        return tuple(side // self.network.config.patch_size for side in self.images.shape[-2:])

    def conditioning(self, where: int) -> Conditioning:
        """Return the known values of the run; `where` is the axis of T or V that has one entry."""
        known = {name: value.unsqueeze(where) for name, value in self.given.items()}
        intrinsics = {"intrinsics": known.get("intrinsics")}
        if self.family == "da3" and self.name:
            return Conditioning(world_to_camera=known["extrinsics"], **intrinsics)
        if self.family != "pi3x" or not self.name:
            return NO_CONDITIONING
        poses = intrinsics | {"world_to_camera": invert_rigid(known["poses"].double())}
        depths = {"depths": known["depths"]}
        masks = {"known_intrinsics": "mask_ray", "known_poses": "mask_pose", "known_depths": "mask_depth"}
        partial = poses | depths | {ours: known[theirs] for ours, theirs in masks.items()}
        named = {"_rays": intrinsics, "_posed": poses, "_depth": intrinsics | depths, "_partial": partial}
        return Conditioning(**named[self.name])


Mids = Callable[[Run, Recorder], dict[str, Tensor]]


def shared_mids(run: Run, recorder: Recorder) -> dict[str, Tensor]:
    """Return tokens of encoder and trunk, by the names of VGGT, Pi3 and VGGT-Omega."""
    encoder, positions = run.network.encoder, token_positions(run.grid, 5)
    recorded = run.mids.get("positions", positions)
    return {
        "encoder_pos_embed": encoder.position_table(run.grid) if hasattr(encoder, "position_table") else None,
        "encoder_tokens_in": encoder.embed(recorder.into("encoder")),
        "patch_tokens": recorder.of("encoder").tokens,
        "positions": positions.expand(recorded.shape),
        "tokens_in": recorder.into("aggregator.blocks.frame.0"),
        "conditioned_tokens": recorder.into("aggregator")[0],
    }


def vggt_mids(run: Run, recorder: Recorder) -> dict[str, Tensor]:
    (trunk,) = recorder.of("aggregator")
    poses = recorder.output.pose_encoding_iterations
    return shared_mids(run, recorder) | {
        "frame_block_0": recorder.of("aggregator.blocks.frame.0"),
        "global_block_0": recorder.of("aggregator.blocks.global.0"),
        **{f"aggregated_{layer}": tokens for layer, tokens in trunk.levels.items()},
        **{f"pose_enc_iter_{index}": pose for index, pose in enumerate(poses)},
        **{f"{head}_fused": recorder.of(f"{head}.fused_conv") for head in ("depth_head", "point_head")},
    }


def page4d_mids(run: Run, recorder: Recorder) -> dict[str, Tensor]:
    first = run.network.config.mask.layers[0]
    block = f"aggregator.blocks.global.{first}"
    tokens, _, bias = recorder.inputs[block][:3]
    return vggt_mids(run, recorder) | {
        "mask_tokens_in": recorder.of(f"aggregator.blocks.frame.{first - 1}"),
        "mask_feature_norm": recorder.into("aggregator.dynamic.head.head0"),
        "mask_logit": recorder.of("aggregator.dynamic.head.head0"),
        "mask_key_value": bias.key[:, None],
        "mask_row_weight": bias.row,
        "masked_global_in": tokens,
        "masked_global_attn_out": recorder.of(f"{block}.attn"),
        "masked_global_block_out": recorder.of(block),
    }


def pi3_mids(run: Run, recorder: Recorder) -> dict[str, Tensor]:
    stage = "frame_head.point_out.stages.0"
    return shared_mids(run, recorder) | {
        "decoder_block_0": recorder.of("aggregator.blocks.frame.0"),
        "decoder_block_1": recorder.of("aggregator.blocks.global.0"),
        "decoder_block_2_in": recorder.into("aggregator.blocks.frame.1"),
        "decoder_out": recorder.into("frame_head"),
        "point_hidden": recorder.of("frame_head.point_decoder"),
        "conf_hidden": recorder.of("frame_head.confidence_decoder"),
        "camera_hidden": recorder.of("frame_head.camera_decoder"),
        "camera_rot9d": recorder.of("frame_head.pose.rotation"),
        "camera_trans": recorder.of("frame_head.pose.translation"),
        "metric_hidden": recorder.of("metric_head.project_out"),
        "point_head_up_0": recorder.of(f"{stage}.1"),
        "point_head_res_0": recorder.of(f"{stage}.2"),
        "point_head_8x": recorder.of("frame_head.point_out.stages.2"),
        "point_head_z_raw": recorder.of("frame_head.point_out.outputs.1"),
        "ray_map": recorder.into("known_geometry.rays"),
        "ray_tokens": recorder.of("known_geometry.rays"),
        "depth_encoder_in": recorder.into("known_geometry.depth_encoder"),
        "depth_encoder_out": getattr(recorder.of("known_geometry.depth_encoder"), "tokens", None),
    }


def pi3x_mids(run: Run, recorder: Recorder) -> dict[str, Tensor]:
    """Return those of Pi3 and poses; the recorded pose block fills images without a known pose as well."""
    given, mids = run.conditioning(1), pi3_mids(run, recorder)
    if given.world_to_camera is None:
        return mids
    depths = None if given.depths is None else [given.depths]
    _, poses = length_unit(replace(given, depths=depths))
    mids["poses_normalised"] = invert_rigid(poses.world_to_camera)
    injected = recorder.of("aggregator.pose_injection.blocks.0")
    recorded = run.mids.get("pose_inject_0", injected)
    if given.known_poses is not None:
        known = given.known_poses.flatten(1).repeat_interleave(injected.shape[1] // run.images.shape[1], dim=1)
        assert known.any()
        injected = torch.where(known[..., None], injected, recorded)
    return mids | {"pose_inject_0": injected}


def omega_mids(run: Run, recorder: Recorder) -> dict[str, Tensor]:
    encoder, (trunk,) = run.network.encoder, recorder.of("aggregator")
    tables, head_dim = encoder.rotary_tables(run.grid), encoder.config.embed_dim // encoder.config.num_heads
    special, layers = 1 + encoder.config.num_registers, range(run.network.config.depth)
    return shared_mids(run, recorder) | {
        "encoder_block_0": recorder.of("encoder.blocks.0"),
        "rope_cos": by_axis(tables.cos[special:].T, head_dim).T,
        "rope_sin": by_axis(tables.sin[special:].T, head_dim).T,
        "frame_block_0": recorder.of("aggregator.blocks.frame.0"),
        **{f"inter_frame_block_{layer}": recorder.of(f"aggregator.blocks.global.{layer}") for layer in layers},
        **{f"aggregated_{layer}": tokens for layer, tokens in trunk.levels.items()},
        "camera_trunk_out": recorder.of("camera_head.trunk.3"),
        "dense_level4": recorder.of("depth_head.fusions.3"),
        "dense_fused": recorder.of("depth_head.fusions.0"),
        "dense_depth_raw": recorder.of("depth_head.shuffled.value"),
    }


def dense_mids(run: Run, recorder: Recorder) -> dict[str, Tensor]:
    encoder = run.network.encoder
    return {
        "encoder_pos_embed": encoder.position_table(run.grid),
        "tokens_in": encoder.embed(recorder.into("encoder")),
        **{f"depth_head_project_{index}": recorder.of(f"depth_head.projects.{index}") for index in range(4)},
        "depth_head_level4": recorder.of("depth_head.fusions.3"),
        "depth_head_fused": recorder.of("depth_head.fused_conv"),
        "ray_head_fused": recorder.of("depth_head.ray_branch.fused_convs"),
        "ray_head_raw": recorder.of("depth_head.ray_branch.out_conv2"),
    }


def mono_mids(run: Run, recorder: Recorder) -> dict[str, Tensor]:
    encoded = recorder.of("encoder")
    return dense_mids(run, recorder) | {f"level_{place}": level for place, level in enumerate(encoded.levels)}


def da3_mids(run: Run, recorder: Recorder) -> dict[str, Tensor]:
    """Return tokens of the trunk; blocks from the one before the trunk on process the reference view first."""
    config, (batch, count) = run.network.config, run.images.shape[:2]
    tokens = recorder.of("encoder").class_tokens.unflatten(0, (batch, count))
    chosen = select_reference(tokens)
    reference = torch.zeros_like(chosen) if run.name else chosen
    others = torch.ones(batch, count, dtype=torch.bool).scatter_(1, reference[:, None], value=False)
    order = torch.cat([reference[:, None], others.nonzero()[:, 1].reshape(batch, -1)], dim=1)

    def processed(tokens: Tensor) -> Tensor:
        by_image = tokens.reshape(batch, count, -1, tokens.shape[-1])
        return torch.stack([own[index] for own, index in zip(by_image, order, strict=True)])

    start = run.meta["encoder"]["alt_start"]
    steps = [f"aggregator.blocks.{step}.{layer}" for layer in range(config.depth) for step in config.schedule]
    blocks = dict(enumerate(steps[config.starts_across :], start=start))
    (trunk,) = recorder.of("aggregator")
    heads = recorder.of(f"{blocks[start]}.attn.q_norm").transpose(1, 2).flatten(2)
    positions, sizes = token_positions(run.grid, 1), SizeGroups.of([run.grid] * count)
    cameras = run.given["extrinsics"][:, None], run.given["intrinsics"][:, None]
    scaled = scale_cameras(cameras[0])
    return dense_mids(run, recorder) | {
        "positions_within": positions,
        "positions_across": positions.clamp(max=1),
        "reference_tokens": tokens,
        "reference_view": chosen,
        "extrinsics_normalised": scaled,
        "camera_encoding_in": camera_encodings(scaled, cameras[1], sizes, 14),
        "camera_condition_tokens": recorder.of("camera_encoder"),
        f"block_{start - 1}": processed(recorder.of(f"encoder.blocks.{start - 1}")),
        f"block_{start}_in": processed(recorder.into(blocks[start])),
        f"block_{start}_q_normed": processed(heads).reshape(*heads.shape[:2], config.num_heads, -1).transpose(1, 2),
        **{f"block_{index}": processed(recorder.of(block)) for index, block in blocks.items()},
        **{f"level_{place}": trunk.levels[layer][:, 0, :, 1:] for place, layer in enumerate(config.dense_layers)},
        "camera_feature": trunk.special_tokens[..., 0, :],
        "pose_enc": run.network.camera_head.camera_to_world(trunk.special_tokens[:, 0]),
    }


@dataclass(frozen=True)
class Family:
    """How a family is read: its cases, the committed one first, runs and intermediate tensors."""

    cases: str
    mids: Mids
    runs: tuple[str, ...] = ("",)
    absent: tuple[str, ...] = ()
    """Some outputs that it does not predict."""


KNOWN_GEOMETRY = ("", "_rays", "_posed", "_depth", "_partial")
FAMILIES = {
    "vggt": Family("cab", vggt_mids, absent=("dynamic",)),
    "page4d": Family("ab", page4d_mids, ("", "_nomask"), ("sky",)),
    "pi3": Family("cab", pi3_mids, absent=("pose_encoding", "dynamic")),
    "pi3x": Family("cab", pi3x_mids, KNOWN_GEOMETRY, ("pose_encoding", "dynamic")),
    "da3": Family("bac", da3_mids, ("", "_posed"), ("points", "sky")),
    "da3mono": Family("bac", mono_mids, absent=("depth_confidence", "world_to_camera")),
    "vggt_omega": Family("cab", omega_mids, absent=("points", "dynamic")),
}
RUNS = [(name, case, run) for name, family in FAMILIES.items() for case in family.cases for run in family.runs]

OUTPUTS: dict[str, Callable[[NetworkOutput], Tensor]] = {
    "pose_enc": lambda out: out.pose_encoding,
    "extrinsics": lambda out: out.world_to_camera[..., :3, :],
    "intrinsics": lambda out: out.intrinsics,
    "depth": lambda out: out.depth,
    "depth_conf": lambda out: out.depth_confidence,
    "world_points": lambda out: out.points,
    "world_points_conf": lambda out: out.points_confidence,
    "points": lambda out: out.points,
    "local_points": lambda out: out.local_points,
    "conf": lambda out: out.confidence_logits,
    "camera_poses": lambda out: out.camera_to_world,
    "metric": lambda out: out.metric_scale,
    "rays": lambda out: functional.normalize(out.local_points, dim=-1),
    "ray": lambda out: out.ray_map,
    "ray_conf": lambda out: out.ray_confidence,
    "sky": lambda out: out.sky,
}
"""Outputs by their recorded names."""

LEFT_OUT = ("text", "depth_sky_filled")
"""Beginnings of the names of recorded outputs that page4d lacks: of a text head, and a depth of the sky."""


@pytest.fixture(scope="module", params=RUNS, ids=lambda row: f"{row[0]}_{row[1]}{row[2]}")
def run(request: pytest.FixtureRequest, golden: Callable) -> Run:
    return read_run(golden, *request.param)


NETWORKS: dict[tuple[str, str, bool | None], tuple[ViewTimeNetwork, dict[str, str]]] = {}
"""Converted networks and the names of their parameters, which the runs of a case share."""


def read_run(golden: Callable, family: str, case: str, name: str) -> Run:
    """Return a run of a recorded case; skip the test if the case lacks it."""
    loaded = golden(f"{family}_{case}")
    outputs = loaded.part(f"output{name}/")
    if not outputs:
        pytest.skip(f"{family}_{case} has no run '{name}'")
    mids = loaded.part(f"mid{name}/")
    if family == "da3":  # its camera head predicts the inverse of the cameras that the network returns
        mids["pose_enc"] = outputs.pop("pose_enc")
    key = (family, case, not name if family == "page4d" else None)
    if key not in NETWORKS:
        given = (loaded.part("weights/"), recorded_config(f"{family}_{case}"), key[-1])
        rows = accounted(*given)[1].rows
        names = {row.source: row.target for row in rows if row.source and row.target}
        NETWORKS[key] = (converted_network(*given), names)
    return Run(family, name, *NETWORKS[key], loaded.meta, loaded.part("input/"), mids, outputs)


def assert_all(ours: Mapping[str, Tensor], recorded: Mapping[str, Tensor], agrees: Callable) -> None:
    """Compare all recorded tensors; the fixtures record some layers only."""
    assert recorded.keys() <= ours.keys()
    for name, reference in recorded.items():
        try:
            agrees(ours[name].to(reference.dtype).reshape(reference.shape), reference)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def assert_outputs(run: Run, out: NetworkOutput, agrees: Callable) -> None:
    recorded = {name: value for name, value in run.outputs.items() if not name.startswith(LEFT_OUT)}
    assert_all({name: OUTPUTS[name](out) for name in recorded}, recorded, agrees)
    absent = ("dynamic",) if run.name == "_nomask" else FAMILIES[run.family].absent
    assert [name for name in absent if getattr(out, name) is not None] == []
    if out.local_points is not None:
        assert torch.equal(out.depth, out.local_points[..., 2])
        assert torch.equal(out.depth_confidence, out.points_confidence)
        torch.testing.assert_close(out.depth_confidence, 1 + out.confidence_logits.exp())
        product = out.world_to_camera @ out.camera_to_world
        torch.testing.assert_close(product, torch.eye(4).double().expand_as(product))


def test_views_of_one_instant(run: Run, agrees: Callable) -> None:
    """Encoder, blocks, heads and outputs of one forward pass."""
    recorder = Recorder(run.network, run.images, conditioning=run.conditioning(1))
    if run.mids:
        mids, recorded = FAMILIES[run.family].mids(run, recorder), dict(run.mids)
        scores = recorded.pop("reference_scores", None)
        assert_all(mids, recorded, agrees)
        if scores is not None:  # in case b, rounding differs by up to 2.7e-3 between processors
            torch.testing.assert_close(saddle_scores(mids["reference_tokens"]), scores, rtol=0, atol=5e-3)
    assert_outputs(run, recorder.output, agrees)


def test_instants_of_one_view_under_limits(run: Run, agrees: Callable) -> None:
    """Published networks treat views and instants equally; limits change nothing."""
    limits = ForwardLimits(max_images=2, max_tokens=20, max_queries=7)
    out = run.network(run.images.unsqueeze(2), conditioning=run.conditioning(2), limits=limits)
    assert_outputs(run, out, agrees)


def test_every_norm_has_the_recorded_epsilon(run: Run) -> None:
    """Epsilons hardly change outputs of networks with full residuals, which some committed cases are."""
    norms = (nn.LayerNorm, nn.GroupNorm)
    found = {name: part.eps for name, part in run.network.named_modules() if isinstance(part, norms)}
    if run.family == "pi3x":  # its committed case has no record
        coarse = {name for name in found if name.endswith(("q_norm", "k_norm")) or ".layers." in name}
        expected = {name: 1e-5 if name in coarse else 1e-6 for name in found}
    else:
        recorded = {f"{name}.weight": eps for name, eps in run.meta["layer_norm_eps"].items()}
        expected = {
            run.names[name].removesuffix(".weight"): eps for name, eps in recorded.items() if name in run.names
        }
        expected |= {name: found[name] for name in found.keys() & {"camera_head.modulated_norm"}}  # without weights
    assert found == expected


@pytest.mark.parametrize("case", FAMILIES["page4d"].cases)
def test_without_the_mask_page4d_equals_vggt(golden: Callable, agrees: Callable, case: str) -> None:
    """Exactly: a mask head of zeros, no mask head, and VGGT. Recorded logits are those of static patches."""
    masked, plain = (read_run(golden, "page4d", case, name) for name in ("", "_nomask"))
    images = masked.images.unsqueeze(1)
    mean = masked.mids["mask_feature_norm"].mean(dim=1)
    agrees(-masked.network(images).dynamic_logit.flatten(0, 2), masked.mids["mask_logit"][:, 0] + mean)
    config, weights = recorded_config(f"page4d_{case}"), golden(f"page4d_{case}").part("weights/")
    of_vggt = {name: value for name, value in weights.items() if "spatial_mask_head" not in name}
    expected = converted_network(of_vggt, replace(config, mask=None))(images)
    zeroed = deepcopy(masked.network)
    for parameter in zeroed.aggregator.dynamic.last_layer.parameters():
        parameter.zero_()
    for network in (plain.network, zeroed):
        out = network(images)
        for name in ("pose_encoding", "depth", "depth_confidence", "points", "points_confidence"):
            assert torch.equal(getattr(out, name), getattr(expected, name))
