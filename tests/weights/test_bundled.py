"""The network that comes with page4d says what it is, beats those who do not look, and notices foreign images."""

import json

import pytest
import torch

import page4d
from page4d.errors import WeightsError
from page4d.models.conditioning import Conditioning
from page4d.models.config import PRESETS
from page4d.models.ood import OODLimits, measure_ood
from page4d.synthetic.sampler import SceneFamily
from page4d.training.validation.validation import (
    MEAN,
    NETWORK,
    HeldOutRequest,
    baselines,
    held_out_truths,
    judge,
    network_guessers,
)
from page4d.weights import bundled
from page4d.weights.bundled import bundled_weights
from page4d.weights.store import describe_weights

CPU = torch.device("cpu")
REQUEST = HeldOutRequest(scenes=8, times=2, views=4, image_size=(64, 80), families=(SceneFamily.ARC,))


@pytest.fixture(scope="module")
def network():
    return page4d.load(device="cpu")


@pytest.fixture(scope="module")
def truths():
    return list(held_out_truths(REQUEST, SceneFamily.ARC, CPU))


def test_the_file_is_small_and_says_all_about_itself():
    config, about = describe_weights(bundled_weights())
    assert bundled_weights().stat().st_size < 40e6
    assert about.licence == "Apache-2.0"
    assert config.depth == PRESETS["mv-demo"].depth
    for entry in ("command", "seeds", "samples", "training"):
        assert about.metadata[entry]
    assert json.loads(about.metadata["curve"])["held_out"]


def test_it_beats_those_who_do_not_look(network, truths):
    found = judge(
        {**network_guessers(network, torch.float32), **baselines(REQUEST, SceneFamily.ARC, CPU)},
        truths,
    )
    ours, mean = found[NETWORK], found[MEAN]
    assert ours["abs_rel"] < 0.8 * mean["abs_rel"]
    assert ours["rotation_deg"] < 0.8 * mean["rotation_deg"]
    assert ours["focal"] < 0.8 * mean["focal"]
    assert ours["ordering"] > 0.2
    assert ours["mask_iou"] > 0.15


def test_images_of_its_own_kind_are_within_its_domain_and_noise_is_not(network, truths):
    domain = OODLimits.from_json(describe_weights(bundled_weights())[1].metadata["domain"])
    scenes = [truth.images[scene : scene + 1] for truth in truths for scene in range(len(truth.images))]
    strange = [images for images in scenes if domain.beyond(measure_ood(network(images)))]
    assert len(strange) <= 2
    torch.manual_seed(0)
    assert domain.beyond(measure_ood(network(torch.rand(1, 2, 4, 3, 64, 80))))


def test_an_installation_without_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(bundled, "_FILE", tmp_path / "lost.safetensors")
    with pytest.raises(WeightsError, match="are not there") as caught:
        bundled_weights()
    assert "--weights FILE" in caught.value.hint


def test_it_can_be_told_cameras(network, truths):
    truth = truths[0]
    told = Conditioning(world_to_camera=truth.cameras.world_to_camera, intrinsics=truth.cameras.intrinsics)
    assert not torch.equal(network(truth.images, conditioning=told).depth, network(truth.images).depth)
