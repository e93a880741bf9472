"""`page4d.load`: networks from weights files, on a device and at a precision."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import page4d
from page4d.choices import SparseStrategy, Target, TimeEncoding
from page4d.errors import CapabilityError, UsageError
from page4d.networks import PRESETS, build_network
from page4d.networks.config_parts import MaskFusion, SparseConfig
from page4d.networks.layers.block import Block
from page4d.weights import load, save_network
from page4d.weights.conversion.convert import ConvertSettings, plan_conversion, write_conversion
from page4d.weights.loading import LoadedNetwork, choose_device
from tests.weights.checkpoints import Checkpoint, assert_golden, checkpoint, page4d_and_pi3


def converted(given: Checkpoint, folder: Path, **settings: object) -> Path:
    out = folder / "out.safetensors"
    source = given.save(folder)
    write_conversion(plan_conversion([source], ConvertSettings(configs=given.configs, **settings)), out)
    source.unlink()
    return out


@pytest.mark.parametrize("target", list(Target))
@pytest.mark.parametrize("name", ["vggt_c", "vggt_a", "vggt_b", "page4d_c", "pi3_c", "pi3_a", "pi3_b", "pi3x_c"])
def test_golden_outputs(name: str, target: Target, tmp_path: Path) -> None:
    """With images as views of one instant or as instants of one view; PAGE-4D without its mask is VGGT."""
    given = page4d_and_pi3()[0] if name == "page4d_c" else checkpoint(name)
    mask = False if name == "page4d_c" else None
    network = page4d.load(converted(given, tmp_path, target=target, mask=mask), "cpu")
    assert_golden(network, given)
    assert (network.config.mask is None) == (target is Target.OWN)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of the smallest network with every part, none of its gates at 0."""
    tiny = PRESETS["mv-tiny"]
    torch.manual_seed(0)
    network = build_network(
        replace(
            tiny,
            mask=replace(tiny.mask, own_blocks=True, fusion=MaskFusion.GATED),
            sparse=SparseConfig(layers=(2, 3), strategy=SparseStrategy.MEMORY, memory_tokens=4),
            time_encoding=TimeEncoding.ALIBI,
        )
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    path = tmp_path_factory.mktemp("opened") / "x.safetensors"
    save_network(network, path, {"licence": "CC0-1.0", "description": "a test"})
    return path


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_half_precision_equals_autocast_with_smaller_weights(name: str, dtype: torch.dtype, opened: Path) -> None:
    images, mask = torch.rand(1, 2, 2, 3, 28, 42), torch.rand(1, 2, 2, 28, 42)
    whole, half = load(opened, "cpu"), page4d.load(opened, "cpu", name)
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        expected = whole(images, mask)
    out = half(images, mask)
    assert torch.equal(out.pose_encoding, expected.pose_encoding)
    assert torch.equal(out.depth, expected.depth)
    assert torch.equal(out.points, expected.points)
    assert torch.equal(out.dynamic, expected.dynamic)
    assert {value.dtype for value in (out.pose_encoding, out.depth, out.points)} == {torch.float32}
    assert out.world_to_camera.dtype is torch.float64
    with torch.no_grad():
        assert not torch.equal(out.depth, whole(images, mask).depth)


@pytest.mark.parametrize(("name", "allowed"), [("fp32", False), ("bf16", True)])
def test_convolutions_in_float32_are_not_rounded_to_tf32(name: str, allowed: bool, opened: Path) -> None:
    network, found = page4d.load(opened, "cpu", name), []
    network.encoder.register_forward_hook(lambda *_: found.append(torch.backends.cudnn.allow_tf32))
    network(torch.rand(1, 1, 2, 3, 28, 42))
    assert found == [allowed]
    assert torch.backends.cudnn.allow_tf32


def test_views_of_different_sizes_are_predicted_in_half_precision_as_well() -> None:
    torch.manual_seed(0)
    config = PRESETS["mv-tiny"]
    whole, half = build_network(config).eval(), LoadedNetwork(config, torch.bfloat16).eval()
    half.load_state_dict(whole.state_dict())
    views = [torch.rand(1, 2, 3, *size) for size in ((28, 42), (42, 28))]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = whole(views)
    with torch.no_grad():
        found = half(views)
    for one, other in zip(found.views, expected.views, strict=True):
        assert one.depth.dtype is torch.float32
        assert torch.equal(one.depth, other.depth)
        assert torch.equal(one.pose_encoding, other.pose_encoding)


def test_only_linear_layers_of_encoder_and_trunk_blocks_are_stored_in_half_precision(opened: Path) -> None:
    network = page4d.load(opened, "cpu", "bf16")
    inside = {
        parameter
        for part in (network.encoder, network.aggregator)
        for block in part.modules()
        if isinstance(block, Block)
        for module in block.modules()
        if isinstance(module, nn.Linear)
        for parameter in module.parameters()
    }
    assert len(inside) == 8 * (1 + 2 * 4 + 2 * 2 * 2 + 2), "encoder, trunk, two streams of two layers, two sparse"
    for name, parameter in network.named_parameters():
        assert parameter.dtype is (torch.bfloat16 if parameter in inside else torch.float32), name
        assert not parameter.requires_grad
        assert parameter.device.type == "cpu"
    assert not network.training


def test_auto_is_float32_on_a_cpu(opened: Path) -> None:
    network = page4d.load(opened, torch.device("cpu"))
    assert {value.dtype for value in network.state_dict().values()} == {torch.float32}


def test_half_files_load_in_any_precision(tmp_path: Path) -> None:
    """A bf16 file equals the linear layers of a bf16 network."""
    given = checkpoint("vggt_c")
    out = converted(given, tmp_path, dtype=torch.bfloat16)
    images = given.images[:, None]
    whole, half = page4d.load(out, "cpu", "fp32"), page4d.load(out, "cpu", "bf16")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = whole(images)
    assert torch.equal(half(images).depth, expected.depth)


@pytest.mark.parametrize(
    ("device", "kind", "message"),
    [
        ("gpu", UsageError, "no device is called 'gpu'"),
        ("cpu:x", UsageError, "no device is called 'cpu:x'"),
        ("meta", CapabilityError, "device 'meta' is not supported"),
        pytest.param(
            "cuda",
            CapabilityError,
            "no CUDA device is available",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here"),
        ),
    ],
)
def test_an_unavailable_device_is_refused(device: str, kind: type, message: str, opened: Path) -> None:
    with pytest.raises(kind, match=message) as caught:
        page4d.load(opened, device)
    assert caught.value.hint


def test_a_device_index_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert str(choose_device("auto")) == "cuda"
    assert str(choose_device("cuda:1")) == "cuda:1"
    with pytest.raises(CapabilityError, match="there is no cuda:2: 2 CUDA devices"):
        choose_device("cuda:2")


def test_an_unknown_precision_is_refused(opened: Path) -> None:
    with pytest.raises(UsageError, match="no precision is called 'int8'") as caught:
        page4d.load(opened, "cpu", "int8")
    assert caught.value.hint == "choose from auto, fp32, bf16, fp16"
