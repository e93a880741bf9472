"""The bundled network: provenance, accuracy against baselines, out-of-distribution detection, known cameras."""

import hashlib
import json

import pytest
import torch

import page4d
from page4d.choices import SceneFamily
from page4d.errors import WeightsError
from page4d.lab.training.config import TrainConfig
from page4d.lab.training.validation import (
    MEAN,
    NETWORK,
    HeldOutScenes,
    baselines,
    evaluate_all,
    held_out_truths,
    network_predictors,
)
from page4d.networks.conditioning import Conditioning
from page4d.networks.ood import OODLimits, measure_ood
from page4d.networks.output import RigOutput
from page4d.networks.presets import PRESETS
from page4d.options import NetworkOptions, ReconstructSettings
from page4d.run.predictor import network_predictor
from page4d.weights import loading, names
from page4d.weights.resolve import bundled_weights
from page4d.weights.store import describe_weights, save_network

CPU = torch.device("cpu")
REQUEST = HeldOutScenes(scenes=4, times=2, views=4, image_size=(64, 80), families=(SceneFamily.ARC,))


@pytest.fixture(scope="module")
def network():
    return page4d.load(device="cpu")


@pytest.fixture(scope="module")
def truths():
    return list(held_out_truths(REQUEST, SceneFamily.ARC, CPU))


def test_a_changed_bit_in_the_bundled_weights_is_noticed(tmp_path, monkeypatch):
    content = bytearray(bundled_weights().read_bytes())
    content[-1000] ^= 1
    damaged = tmp_path / "mv-demo.safetensors"
    damaged.write_bytes(content)
    for module in (loading, names):
        monkeypatch.setattr(module, "BUNDLED_FILE", damaged)
    with pytest.raises(WeightsError, match=r"mv-demo\.safetensors has sha256 .*, expected 4755241741c2") as caught:
        page4d.load(device="cpu")
    assert "reinstall page4d" in caught.value.hint


def test_a_damaged_copy_of_the_bundled_weights_is_refused_and_networks_trained_further_are_not(tmp_path, network):
    content, copy = bytearray(bundled_weights().read_bytes()), tmp_path / "copy.safetensors"
    copy.write_bytes(content)
    page4d.load(copy, device="cpu")
    content[len(content) // 2] ^= 1
    copy.write_bytes(content)
    with pytest.raises(WeightsError, match=r"copy.safetensors' is described as the bundled network, and has sha256"):
        page4d.load(copy, device="cpu")
    page4d.load(copy, device="cpu", sha256=hashlib.sha256(content).hexdigest())
    save_network(network, copy, {**network.info.metadata, "description": "mv-demo trained on 10 samples"})
    assert page4d.load(copy, device="cpu").config == network.config


def test_the_file_is_small_and_records_its_provenance():
    config, about = describe_weights(bundled_weights())
    assert bundled_weights().stat().st_size < 40e6
    assert about.licence == "Apache-2.0"
    assert config.depth == PRESETS["mv-demo"].depth
    for entry in ("command", "seeds", "samples"):
        assert about.metadata[entry]
    assert TrainConfig.from_json(about.metadata["training"]).sources
    assert json.loads(about.metadata["curve"])["held_out"]


def test_it_beats_the_baselines_without_images(network, truths):
    predictor = network_predictors(network, torch.float32)[NETWORK]
    baseline = baselines(REQUEST, SceneFamily.ARC, CPU)[MEAN]
    found = evaluate_all({NETWORK: predictor, MEAN: baseline}, truths)
    ours, mean = found[NETWORK], found[MEAN]
    assert ours["abs_rel"] < 0.8 * mean["abs_rel"]
    assert ours["rotation_deg"] < 0.8 * mean["rotation_deg"]
    assert ours["focal"] < 0.8 * mean["focal"]
    assert ours["ordering"] > 0.2
    assert ours["mask_iou"] > 0.15


def test_noise_is_out_of_distribution_and_training_scenes_are_not(network, truths):
    limits = OODLimits.from_json(describe_weights(bundled_weights())[1].metadata["domain"])
    scenes = [truth.images[scene : scene + 1] for truth in truths for scene in range(len(truth.images))]

    def is_flagged(images: torch.Tensor) -> bool:
        return any(ratio > 1 for ratio in limits.ratios(measure_ood(RigOutput.of(network(images)))).values())

    assert sum(map(is_flagged, scenes)) <= 1
    torch.manual_seed(0)
    assert is_flagged(torch.rand(1, 2, 4, 3, 64, 80))


def test_the_bundled_network_by_name_is_the_default() -> None:
    named, default = (
        network_predictor(NetworkOptions(weights=name, device="cpu"), ReconstructSettings()).record
        for name in ("mv-demo", None)
    )
    assert named == default
    assert named.notice


def test_a_missing_file_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr("page4d.weights.names.BUNDLED_FILE", tmp_path / "lost.safetensors")
    with pytest.raises(WeightsError, match="the bundled weights are missing") as caught:
        bundled_weights()
    assert "weights=FILE" in caught.value.hint


def test_known_cameras_change_the_prediction(network, truths):
    truth = truths[0]
    known = Conditioning(world_to_camera=truth.cameras.world_to_camera, intrinsics=truth.cameras.intrinsics)
    assert not torch.equal(network(truth.images, conditioning=known).depth, network(truth.images).depth)
