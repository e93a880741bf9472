"""Depth Anything 3 reproduces recorded numbers of the public any-view network, with and without known cameras."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from page4d.networks.conditioning import NO_CONDITIONING, Conditioning, SizeGroups
from page4d.networks.inputs.known_cameras import camera_encodings, scale_cameras
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.tokens import saddle_scores, select_reference, token_positions
from page4d.weights.families.da3 import DA3Settings
from tests.keymaps import converted
from tests.models.test_recorded_tensors import Recorder, assert_all


@dataclass(frozen=True)
class Case:
    """A network with recorded weights, images, cameras and tensors."""

    network: ViewTimeNetwork
    settings: DA3Settings
    images: Tensor
    cameras: Conditioning
    part: Callable[[str], dict[str, Tensor]]

    @property
    def grid(self) -> tuple[int, int]:
        return self.images.shape[-2] // 14, self.images.shape[-1] // 14


@pytest.fixture(scope="module", params=["b", "a", "c"])
def case(request: pytest.FixtureRequest, golden: Callable) -> Case:
    loaded = golden(f"da3_{request.param}")
    settings = DA3Settings.model_validate(loaded.meta)
    config, state = converted(loaded.part("weights/"), settings)
    network = build_network(config).eval().requires_grad_(False)
    network.load_state_dict(state)
    poses, intrinsics = (loaded.tensors[f"input/{name}"][:, None] for name in ("extrinsics", "intrinsics"))
    cameras = Conditioning(world_to_camera=poses, intrinsics=intrinsics)
    return Case(network, settings, loaded.tensors["input/images"], cameras, loaded.part)


def outputs(network: ViewTimeNetwork, recorder: Recorder) -> dict[str, Tensor]:
    """Return the recorded outputs of images that are views of one instant."""
    out, (trunk,) = recorder.output, recorder.of("aggregator")
    return {
        "pose_enc": network.camera_head.camera_to_world(trunk.special_tokens[:, 0]),
        "depth": out.depth[:, 0],
        "depth_conf": out.depth_confidence[:, 0],
        "ray": out.ray_map[:, 0],
        "ray_conf": out.ray_confidence[:, 0],
        "extrinsics": out.world_to_camera[:, 0, :, :3].float(),
        "intrinsics": out.intrinsics[:, 0].float(),
    }


def dense_mids(recorder: Recorder) -> dict[str, Tensor]:
    return {
        **{f"depth_head_project_{index}": recorder.of(f"depth_head.projects.{index}") for index in range(4)},
        "depth_head_level4": recorder.of("depth_head.fusions.3"),
        "depth_head_fused": recorder.of("depth_head.fused_conv"),
        "ray_head_fused": recorder.of("depth_head.ray_branch.fused_convs"),
        "ray_head_raw": recorder.of("depth_head.ray_branch.out_conv2"),
    }


def trunk_mids(case: Case, recorder: Recorder, reference: Tensor) -> dict[str, Tensor]:
    """Return tokens of the trunk; blocks from the one before the trunk on process the reference view first."""
    batch, count = case.images.shape[:2]
    others = torch.ones(batch, count, dtype=torch.bool).scatter_(1, reference[:, None], value=False)
    order = torch.cat([reference[:, None], others.nonzero()[:, 1].reshape(batch, -1)], dim=1)

    def processed(tokens: Tensor) -> Tensor:
        by_image = tokens.reshape(batch, count, -1, tokens.shape[-1])
        return torch.stack([own[index] for own, index in zip(by_image, order, strict=True)])

    config, start = case.network.config, case.settings.encoder.alt_start
    steps = [f"aggregator.blocks.{step}.{layer}" for layer in range(config.depth) for step in config.schedule]
    blocks = dict(enumerate(steps[config.starts_across :], start=start))
    (trunk,) = recorder.of("aggregator")
    heads = recorder.of(f"{blocks[start]}.attn.q_norm").transpose(1, 2).flatten(2)
    ordered = processed(heads).reshape(*heads.shape[:2], config.num_heads, -1).transpose(1, 2)
    return {
        f"block_{start - 1}": processed(recorder.of(f"encoder.blocks.{start - 1}")),
        f"block_{start}_in": processed(recorder.into(blocks[start])),
        f"block_{start}_q_normed": ordered,
        **{f"block_{index}": processed(recorder.of(block)) for index, block in blocks.items()},
        **{f"level_{place}": trunk.levels[layer][:, 0, :, 1:] for place, layer in enumerate(config.dense_layers)},
        "camera_feature": trunk.camera_tokens[:, 0],
    }


def encoder_mids(case: Case, recorder: Recorder) -> dict[str, Tensor]:
    encoder, normalised = case.network.encoder, recorder.into("encoder")
    tokens = recorder.of("encoder").class_tokens.unflatten(0, case.images.shape[:2])
    positions = token_positions(case.grid, 1)
    return {
        "encoder_pos_embed": encoder.position_table(case.grid),
        "positions_within": positions,
        "positions_across": positions.clamp(max=1),
        "tokens_in": encoder.embed(normalised),
        "reference_tokens": tokens,
        "reference_view": select_reference(case.network.config.reference_view, tokens),
    }


def test_images_alone(case: Case, agrees: Callable) -> None:
    recorder = Recorder(case.network, case.images)
    mids = encoder_mids(case, recorder)
    mids |= trunk_mids(case, recorder, mids["reference_view"]) | dense_mids(recorder)
    mids["extrinsics_normalised"] = scale_cameras(case.cameras.world_to_camera)
    recorded = case.part("mid/")
    scores = recorded.pop("reference_scores", None)
    assert_all(mids, recorded, agrees)
    if scores is not None:  # in case b, rounding of the recorded ones reaches 11 times the tolerance
        torch.testing.assert_close(saddle_scores(mids["reference_tokens"]), scores, rtol=0, atol=1e-3)
    ours = outputs(case.network, recorder)
    assert_all(ours, case.part("output/"), agrees)
    assert case.part("output/").keys() == ours.keys()


def test_known_cameras(case: Case, agrees: Callable) -> None:
    recorder = Recorder(case.network, case.images, conditioning=case.cameras)
    mids = trunk_mids(case, recorder, torch.zeros(len(case.images), dtype=torch.int64))
    sizes = SizeGroups.of([case.grid] * case.images.shape[1])
    scaled = scale_cameras(case.cameras.world_to_camera)
    mids["camera_encoding_in"] = camera_encodings(scaled, case.cameras.intrinsics, sizes, 14)[:, 0]
    mids["camera_condition_tokens"] = recorder.of("camera_encoder")[:, 0]
    assert_all(mids, case.part("mid_posed/"), agrees)
    ours = outputs(case.network, recorder)
    assert_all(ours, case.part("output_posed/"), agrees)


@pytest.mark.parametrize("conditioned", [False, True])
def test_instants_are_views(case: Case, agrees: Callable, conditioned: bool) -> None:
    cameras = case.cameras if conditioned else NO_CONDITIONING
    as_instants = (
        Conditioning(
            world_to_camera=cameras.world_to_camera.transpose(1, 2), intrinsics=cameras.intrinsics.transpose(1, 2)
        )
        if conditioned
        else NO_CONDITIONING
    )
    out = case.network(case.images.unsqueeze(2), conditioning=as_instants)
    recorded = case.part("output_posed/" if conditioned else "output/")
    agrees(out.depth[:, :, 0], recorded["depth"])
    agrees(out.ray_map[:, :, 0], recorded["ray"])
    agrees(out.world_to_camera[:, :, 0, :3].float(), recorded["extrinsics"])


@pytest.mark.parametrize("cameras", ["extrinsics", "extrinsics_still"])
def test_known_cameras_of_a_batch_are_scaled_together(golden: Callable, agrees: Callable, cameras: str) -> None:
    """Also cameras that hardly move; all scenes of a batch have one unit of length."""
    recorded = golden("da3_ops").tensors
    scaled = scale_cameras(recorded[f"input/{cameras}"].double().unsqueeze(1))
    agrees(scaled[:, 0].float(), recorded[f"output/{cameras}_normalised"])
