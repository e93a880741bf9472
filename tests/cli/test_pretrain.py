"""`page4d pretrain`: files, output, use of the encoder, and errors."""

import json
import signal
from dataclasses import replace

import pytest
import torch

from page4d.io.json_records import config_to_json
from page4d.lab.pretraining.config import PretrainConfig
from page4d.networks.encoders.vit import ViTConfig
from page4d.networks.presets import PRESETS as NETWORKS
from page4d.weights.loading import load, load_encoder
from page4d_cli import progress as training_display
from tests.cli.clips import write_scene

ENCODER = ViTConfig(image_size=28, patch_size=14, embed_dim=32, depth=1, num_heads=2)
RUN = ("--device", "cpu", "--threads", "1", "--batch", "2")


@pytest.fixture
def scene(tmp_path):
    (tmp_path / "encoder.json").write_text(config_to_json(ENCODER))
    return write_scene(tmp_path / "scene")


@pytest.fixture
def pretrain(cli, scene, tmp_path):
    def call(*arguments: object):
        return cli(
            "pretrain", scene, "--out", tmp_path / "run", "--encoder", tmp_path / "encoder.json", *RUN, *arguments
        )

    return call


@pytest.mark.parametrize("method", ["mae", "dino"])
def test_a_run_writes_an_encoder(pretrain, tmp_path, method):
    ended = pretrain("--method", method, "--steps", 5, "--json")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert (result["steps"], result["samples"], result["skipped_steps"]) == (5, 10, 0)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {"encoder.safetensors", "metrics.jsonl", "config.json"}
    _, config, info = load_encoder(tmp_path / "run" / "encoder.safetensors")
    assert config == ENCODER
    assert method in info.description


def test_a_run_interrupted_by_ctrl_c_resumes(pretrain, cli, tmp_path, monkeypatch):
    monkeypatch.setattr(training_display.TrainingProgress, "step", lambda *_: signal.raise_signal(signal.SIGINT))
    ended = pretrain("--steps", 7)
    assert ended.code == 130
    assert "error: interrupted after step 5, which is saved in" in ended.err
    monkeypatch.undo()
    ended = cli("pretrain", "--out", tmp_path / "run", "--resume", "--device", "cpu", "--quiet")
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    refused = cli("pretrain", "--out", tmp_path / "run", "--resume")
    assert (refused.code, "is finished: 14 samples" in refused.err) == (2, True)
    refused = cli("pretrain", "--out", tmp_path / "run", "--resume", "--seed", 3)
    assert (refused.code, "keeps its configuration" in refused.err) == (2, True)


def test_a_dry_run_prints_a_configuration_for_the_next_run(pretrain, cli, tmp_path):
    shown = pretrain("--method", "dino", "--seed", 5, "--size", 56, "--learning-rate", 0.01, "--dry-run")
    config = PretrainConfig.from_json(shown.out)
    assert (config.seed, config.crops.size, config.optimizer.learning_rate) == (5, 56, 0.01)
    (tmp_path / "config.json").write_text(shown.out)
    again = cli("pretrain", "--out", tmp_path / "run", "--dry-run", "--config", tmp_path / "config.json")
    assert again.out == shown.out
    assert not (tmp_path / "run").exists()


def test_the_encoder_initializes_a_network_and_can_be_converted(pretrain, cli, tmp_path):
    assert pretrain("--method", "dino", "--steps", 2, "--quiet").code == 0
    file = tmp_path / "run" / "encoder.safetensors"
    network = replace(NETWORKS["mv-tiny"], encoder=replace(ENCODER, drop_path=0.1))
    (tmp_path / "network.json").write_text(network.to_json())
    train = ("train", "--preset", "tiny", "--device", "cpu", "--threads", 1, "--until-samples", 2, "--quiet")
    rate = ("--learning-rate", 1e-12, "--fp32-weights")
    given = ("--model", tmp_path / "network.json", "--encoder-weights", file)
    ended = cli(*train, "--out", tmp_path / "trained", *given, *rate)
    assert (ended.code, ended.err) == (0, "")
    trained = load(tmp_path / "trained" / "weights.safetensors", "cpu")
    for name, value in load_encoder(file)[0].state_dict().items():
        torch.testing.assert_close(trained.state_dict()[f"encoder.{name}"], value, rtol=0, atol=1e-6)
    assert "encoder of encoder.safetensors, sha256" in trained.info.metadata["history_from"]
    refused = cli(*train, "--out", tmp_path / "other", "--encoder-weights", file)
    assert refused.code == 4
    assert "is a vit, and mv-tiny has a dinov2" in refused.err
    refused = cli(*train, "--out", tmp_path / "other", *given, "--weights", file)
    assert (refused.code, "--weights brings its own encoder" in refused.err) == (2, True)
    ended = cli("convert-weights", file, "--out", tmp_path / "half.safetensors", "--dtype", "fp16")
    assert ended.code == 0, ended.err
    assert "all accounted for" in ended.out
    (half, half_config, half_info), (whole, config, info) = map(load_encoder, (tmp_path / "half.safetensors", file))
    assert half_config == config
    assert (half_info.licence, half_info.description) == (info.licence, info.description)
    for name, value in whole.state_dict().items():
        assert torch.equal(half.state_dict()[name], value.half().float())
