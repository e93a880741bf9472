"""`page4d train`: files, output and errors; evaluation of its weights on held-out scenes."""

import json
import signal
from dataclasses import replace

import pytest

from page4d.lab.training.config import TRAINING_PRESETS, TrainConfig
from page4d.networks.encoders.vit import ViTConfig
from page4d.networks.presets import PRESETS as NETWORKS
from page4d.weights.loading import load
from page4d_cli import progress as training_display
from tools import held_out

RUN = ("--preset", "tiny", "--device", "cpu", "--threads", "1")


@pytest.fixture
def trained(cli, tmp_path):
    ended = cli("train", "--out", tmp_path / "run", *RUN, "--until-samples", 4, "--json")
    return tmp_path / "run", ended


def test_a_run_writes_weights_that_held_out_evaluates(trained, capsys):
    out, ended = trained
    assert ended.code == 0
    result = json.loads(ended.out)
    assert (result["samples"], result["skipped_steps"], result["weights"]) == (4, 0, str(out / "weights.safetensors"))
    assert "step" in ended.err
    names = {path.name for path in out.iterdir()}
    assert names >= {"config.json", "checkpoint.pt", "metrics.jsonl", "weights.safetensors"}
    assert TrainConfig.from_json((out / "config.json").read_text()) == TRAINING_PRESETS["tiny"]
    assert load(out / "weights.safetensors", "cpu").info.metadata["steps"] == str(result["steps"])
    words = [str(out / "weights.safetensors"), *"--families arc --size 42x28 --scenes".split()]
    held_out.main([*words, "2", "--views", "2", "--json"])
    metrics = json.loads(capsys.readouterr().out)["figures"]["arc"]
    assert {"network", "mean depth map, mean pose"} <= set(metrics)
    assert 0 < metrics["network"]["abs_rel"] < 2
    held_out.main([*words, "1"])
    table = capsys.readouterr().out
    assert "AbsRel" in table
    assert "mean pose" in table


def test_a_network_is_configured_by_a_file(cli, tmp_path):
    encoder = ViTConfig(image_size=42, patch_size=14, embed_dim=32, depth=1, num_heads=2)
    network = replace(NETWORKS["mv-tiny"], encoder=encoder)
    (tmp_path / "network.json").write_text(network.to_json())
    model = ("--model", tmp_path / "network.json")
    ended = cli("train", "--out", tmp_path / "run", *RUN, *model, "--until-samples", 2, "--quiet")
    assert (ended.code, ended.err) == (0, "")
    loaded = load(tmp_path / "run" / "weights.safetensors", "cpu")
    assert loaded.config == network
    assert loaded.info.description == "a network on vit trained on 2 samples"
    config = TrainConfig.from_json((tmp_path / "run" / "config.json").read_text())
    assert config == replace(TRAINING_PRESETS["tiny"], model=network)
    resumed = cli("train", "--out", tmp_path / "run", "--resume", "--until-samples", 3, "--device", "cpu", "--quiet")
    assert (resumed.code, resumed.err) == (0, "")


def test_a_run_interrupted_by_ctrl_c_resumes(cli, tmp_path, monkeypatch):
    show = training_display.TrainingProgress.step

    def interrupt(self, report):
        show(self, report)
        if report.step == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(training_display.TrainingProgress, "step", interrupt)
    ended = cli("train", "--out", tmp_path, *RUN, "--until-samples", 6)
    assert ended.code == 130
    assert "error: interrupted after step 2, which is saved in" in ended.err
    assert ended.err.rstrip().endswith("hint:  continue with --resume")
    monkeypatch.undo()
    ended = cli("train", "--out", tmp_path, "--resume", "--device", "cpu", "--quiet")
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    assert (tmp_path / "weights.safetensors").is_file()
    refused = cli("train", "--out", tmp_path, "--resume")
    assert refused.code == 2
    assert "is finished: 6 samples" in refused.err


def test_a_dry_run_prints_a_configuration_for_the_next_run(cli, tmp_path):
    shown = cli(
        "train", "--out", tmp_path / "run", "--dry-run", "--seed", 5, "--learning-rate", 0.01, "--data", "rig"
    )
    (tmp_path / "config.json").write_text(shown.out)
    config = TrainConfig.from_json(shown.out)
    assert (config.seed, config.optimizer.learning_rate, config.sources[0].path) == (5, 0.01, "rig")
    again = cli("train", "--out", tmp_path / "run", "--dry-run", "--config", tmp_path / "config.json")
    assert again.out == shown.out
    assert not (tmp_path / "run").exists()
