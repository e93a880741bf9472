"""Pi3X reproduces recorded numbers: images alone, and with known intrinsics, poses and depth.

`pi3x_c` in tests/golden lacks most recorded intermediates and the rays, `pi3x_ops` the conditioning on ray maps.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from page4d.geometry.transforms import invert_rigid
from page4d.networks.conditioning import NO_CONDITIONING, Conditioning
from page4d.networks.inputs.known_geometry import (
    CameraFrames,
    depth_channels,
    length_unit,
    ray_channels,
    resize_depth,
)
from page4d.networks.layers.attention import attend, grid_positions, rotary_tables
from page4d.networks.layers.execution import NO_LIMITS, ForwardLimits
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.output import NetworkOutput
from page4d.networks.presets import PRESETS
from page4d.weights.families.pi3 import PI3X, PI3X_READER, Pi3XSettings
from page4d.weights.store import TensorSpec
from tests.keymaps import rename
from tests.weights.checkpoints import manifest

CONDITIONING = ("depth_encoder.", "depth_emb", "ray_embed.", "pose_inject_blk.")
RUNS = ["", "_rays", "_posed", "_depth", "_partial"]


@dataclass(frozen=True)
class Case:
    """A network with recorded weights, inputs, intermediates and outputs."""

    network: ViewTimeNetwork
    tensors: dict[str, Tensor]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors of a run; skip the test if the case lacks it."""
        found = {name.removeprefix(prefix): value for name, value in self.tensors.items() if name.startswith(prefix)}
        if not found:
            pytest.skip(f"no {prefix} is recorded")
        return found

    def conditioning(self, run: str, where: int) -> Conditioning:
        """Return the conditioning of a run; `where` is the axis of T or V that has one entry."""
        given = {name: value.unsqueeze(where) for name, value in self.part("input/").items()}
        poses = {"world_to_camera": invert_rigid(given["poses"].double()), "intrinsics": given["intrinsics"]}
        masks = {"known_intrinsics": "mask_ray", "known_poses": "mask_pose", "known_depths": "mask_depth"}
        depths = {"depths": given["depths"]}
        return Conditioning(
            **{
                "": {},
                "_rays": {"intrinsics": given["intrinsics"]},
                "_posed": poses,
                "_depth": {"intrinsics": given["intrinsics"], **depths},
                "_partial": {**poses, **depths, **{ours: given[theirs] for ours, theirs in masks.items()}},
            }[run]
        )


@pytest.fixture(scope="module", params=["c", "a", "b"])
def case(request: pytest.FixtureRequest, golden: Callable) -> Case:
    loaded = golden(f"pi3x_{request.param}")
    weights = loaded.part("weights/")
    specs = {name: TensorSpec(shape=tuple(value.shape), dtype=value.dtype) for name, value in weights.items()}
    network = build_network(PI3X_READER.build(specs, Pi3XSettings(**loaded.meta))).eval()
    network.load_state_dict(rename(weights, PI3X))
    return Case(network.requires_grad_(False), loaded.tensors)


def assert_agrees(out: NetworkOutput, recorded: dict[str, Tensor], where: int, agrees: Callable) -> None:
    """Compare the outputs with recorded ones; `where` is the axis of T or V that has one entry."""
    agrees(out.metric_scale, recorded["metric"])
    agrees(out.points.squeeze(where), recorded["points"])
    agrees(out.local_points.squeeze(where), recorded["local_points"])
    agrees(out.depth.squeeze(where), recorded["local_points"][..., 2])
    agrees(out.confidence_logits.squeeze(where)[..., None], recorded["conf"])
    agrees(out.camera_to_world.squeeze(where).float(), recorded["camera_poses"])
    if "rays" in recorded:
        agrees(functional.normalize(out.local_points.squeeze(where), dim=-1), recorded["rays"])


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("where", [1, 2], ids=["views", "times"])
def test_outputs(case: Case, agrees: Callable, run: str, where: int) -> None:
    recorded = case.part(f"output{run}/")
    limits = NO_LIMITS if where == 1 else ForwardLimits(max_images=2, max_tokens=20, max_queries=7)
    images = case.tensors["input/images"].unsqueeze(where)
    out = case.network(images, conditioning=case.conditioning(run, where), limits=limits)
    assert_agrees(out, recorded, where, agrees)
    assert torch.equal(out.depth_confidence, out.points_confidence)


def test_masks_without_known_images_add_nothing(case: Case) -> None:
    """Also a single known pose in a sequence: poses are relative."""
    images, given = case.tensors["input/images"].unsqueeze(1), case.conditioning("_partial", 1)
    plain = case.network(images)
    for known in (False, True):
        masks = {name: torch.zeros(images.shape[:3], dtype=torch.bool) for name in vars(given) if "known" in name}
        masks["known_poses"][:, 0, -1] = known
        out = case.network(images, conditioning=Conditioning(**vars(given) | masks))
        assert torch.equal(out.points, plain.points)
        assert torch.equal(out.metric_scale, plain.metric_scale)


def test_the_world_of_known_poses_does_not_matter(case: Case, agrees: Callable) -> None:
    images, given = case.tensors["input/images"].unsqueeze(1), case.conditioning("_partial", 1)
    moved = given.world_to_camera @ torch.linalg.inv(given.world_to_camera[:1, :1, 1:2])
    one, other = (
        case.network(images, conditioning=Conditioning(**vars(given) | {"world_to_camera": poses}))
        for poses in (given.world_to_camera, moved)
    )
    agrees(other.points, one.points)


def test_the_order_of_images_does_not_matter(case: Case) -> None:
    images = case.tensors["input/images"].unsqueeze(1)
    one, other = case.network(images), case.network(images.flip(2))
    torch.testing.assert_close(one.metric_scale, other.metric_scale, rtol=1e-5, atol=0)
    torch.testing.assert_close(one.world_to_camera.flip(2), other.world_to_camera, rtol=0, atol=1e-4)
    torch.testing.assert_close(one.depth.flip(2), other.depth, rtol=1e-4, atol=1e-4)


class Recorder:
    """The tensors that enter and leave the parts of a network."""

    def __init__(self, case: Case, run: str) -> None:
        self.inside: dict[str, Tensor] = {}
        self.outside: dict[str, Tensor] = {}
        hooks = [
            part.register_forward_hook(lambda _, given, made, name=name: self._keep(name, given, made))
            for name, part in case.network.named_modules()
        ]
        conditioning = NO_CONDITIONING if run == "" else case.conditioning(run, 1)
        case.network(case.tensors["input/images"].unsqueeze(1), conditioning=conditioning)
        for hook in hooks:
            hook.remove()

    def _keep(self, name: str, given: tuple, made: object) -> None:
        self.inside[name], self.outside[name] = given[0] if given else None, made


@pytest.mark.parametrize("run", RUNS)
def test_intermediates(case: Case, agrees: Callable, run: str) -> None:
    recorded = case.part(f"mid{run}/")
    tensors = Recorder(case, run)
    into, out_of = tensors.inside, tensors.outside
    stage = "frame_head.point_out.stages.0"
    found: dict[str, Callable[[], Tensor]] = {
        "patch_tokens": lambda: out_of["encoder"].tokens,
        "conditioned_tokens": lambda: into["aggregator"][0],
        "decoder_block_1": lambda: out_of["aggregator.blocks.global.0"],
        "decoder_block_2_in": lambda: into["aggregator.blocks.frame.1"],
        "decoder_out": lambda: into["frame_head"],
        "point_hidden": lambda: out_of["frame_head.point_decoder"],
        "conf_hidden": lambda: out_of["frame_head.confidence_decoder"],
        "camera_hidden": lambda: out_of["frame_head.camera_decoder"],
        "metric_hidden": lambda: out_of["metric_head.project_out"],
        "point_head_up_0": lambda: out_of[f"{stage}.1"],
        "point_head_res_0": lambda: out_of[f"{stage}.2"],
        "point_head_8x": lambda: out_of["frame_head.point_out.stages.2"],
        "point_head_z_raw": lambda: out_of["frame_head.point_out.outputs.1"],
        "ray_map": lambda: into["known_geometry.rays"],
        "ray_tokens": lambda: out_of["known_geometry.rays"],
        "depth_encoder_in": lambda: into["known_geometry.depth_encoder"],
        "depth_encoder_out": lambda: out_of["known_geometry.depth_encoder"].tokens,
        "pose_inject_0": lambda: out_of["aggregator.pose_injection.blocks.0"],
        "poses_normalised": lambda: normalized_poses(case.conditioning(run, 1)),
    }
    recorded.pop("positions", None)
    if "pose_inject_0" in recorded:  # the recorded block fills images without a known pose as well
        known = case.conditioning(run, 1).known_poses
        shape = recorded["pose_inject_0"].shape
        chosen = torch.ones(shape[:2], dtype=torch.bool)
        if known is not None:
            chosen = known.flatten(1).repeat_interleave(shape[1] // known[0].numel(), dim=1)
        agrees(found.pop("pose_inject_0")()[chosen], recorded.pop("pose_inject_0")[chosen])
    for name, expected in recorded.items():
        agrees(found[name]().reshape(expected.shape), expected)


def normalized_poses(given: Conditioning) -> Tensor:
    """Return camera-to-world poses as they enter the pose injection."""
    depths = None if given.depths is None else [given.depths]
    return invert_rigid(length_unit(replace(given, depths=depths)).poses.world_to_camera).float()


@pytest.fixture(scope="module")
def ops(golden: Callable) -> dict[str, Tensor]:
    return golden("pi3x_ops").tensors


def test_known_geometry(ops: dict[str, Tensor], agrees: Callable) -> None:
    """Known depth, none known, and cameras at rest with a single known pose."""
    depths = ops["input/depths"].unsqueeze(1)
    given = Conditioning(
        world_to_camera=invert_rigid(ops["input/poses"].double()).unsqueeze(1),
        depths=[depths],
        known_poses=ops["input/mask_pose"].unsqueeze(1),
        known_depths=ops["input/mask_depth"].unsqueeze(1),
    )
    length = length_unit(given)
    agrees(length.unit.float(), ops["output/scale_factor"])
    agrees(invert_rigid(length.poses.world_to_camera).squeeze(1).float(), ops["output/poses_normalised"])
    assert torch.equal(length.poses.known.squeeze(1), ops["output/pose_mask_used"])
    expected = ops["output/depth_and_mask"].flatten(0, 1)
    agrees(depth_channels(depths.flatten(0, 2), length.unit.repeat_interleave(3)), expected)
    rays = ray_channels(ops["input/intrinsics"].flatten(0, 1), tuple(expected.shape[-2:]))
    agrees(rays, ops["output/ray_map"].flatten(0, 1))


def test_depth_is_resized(ops: dict[str, Tensor]) -> None:
    depth, expected = ops["input/depth_raw"], ops["output/depth_resized"]
    assert torch.equal(resize_depth(depth.expand(1, 2, -1, -1), tuple(expected.shape)), expected.expand(1, 2, -1, -1))


def test_attention_in_camera_frames(ops: dict[str, Tensor], agrees: Callable) -> None:
    """Two images of 2 x 3 patches."""
    poses = ops["input/prope_world_to_camera"].repeat_interleave(6, dim=1)
    columns_rows = grid_positions((2, 3)).flip(-1).repeat(2, 1)
    rope, inverse = (rotary_tables(sign * columns_rows, 8) for sign in (1, -1))
    frames = CameraFrames(world_to_camera=poses, camera_to_world=invert_rigid(poses), rope=rope, inverse_rope=inverse)
    query, key, value = (
        frames.of_queries(ops["input/prope_q"]),
        *map(frames.of_keys, (ops["input/prope_k"], ops["input/prope_v"])),
    )
    agrees(query, ops["output/prope_q"])
    agrees(key, ops["output/prope_k"])
    agrees(value, ops["output/prope_v"])
    agrees(frames.of_outputs(ops["input/prope_o"]), ops["output/prope_o"])
    agrees(frames.of_outputs(attend(query, key, value)), ops["output/prope_attention"])
    agrees(frames.of_tokens(slice(4, 9)).of_keys(ops["input/prope_k"][:, :, 4:9]), key[:, :, 4:9])


def test_the_preset_is_the_public_network() -> None:
    specs = manifest("pi3x")
    assert PI3X_READER.build(specs, PI3X_READER.published[0]) == PRESETS["pi3x"]
    alone = {name: spec for name, spec in specs.items() if not name.startswith(CONDITIONING)}
    assert len(specs) - len(alone) == 436
    assert PI3X_READER.build(alone, PI3X_READER.published[0]) == replace(PRESETS["pi3x"], known_geometry=None)
    with torch.device("meta"):
        networks = [build_network(PI3X_READER.build(given, PI3X_READER.published[0])) for given in (specs, alone)]
    for network, given in zip(networks, (specs, alone), strict=True):
        renamed = rename({name: torch.empty(spec.shape, device="meta") for name, spec in given.items()}, PI3X)
        ours = network.state_dict()
        assert {name: value.shape for name, value in renamed.items()} == {
            name: value.shape for name, value in ours.items()
        }
