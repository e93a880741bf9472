"""`page4d benchmark`: measured and predicted cost over a grid."""

import json

import torch

from page4d.run.predictor import NetworkPredictor

GRID = ("benchmark", "--preset", "mv-tiny", "--times", "2,1", "--views", "2", "--size", "28x14,28")


def test_every_grid_point_is_measured_and_predicted(cli):
    ended = cli(*GRID, "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)["measurements"]
    assert [(part["size"], part["views"], part["times"]) for part in found] == [
        (size, 2, times) for size in ([28, 14], [28, 28]) for times in (1, 2)
    ]
    for part in found:
        assert part["tflop"] > 0
        assert abs(part["predicted_bytes"] / part["bytes"] - 1) < 0.1
        assert abs(part["images_per_second"] * part["seconds"] - 2 * part["times"]) < 1e-6


def test_refinement_is_measured_where_the_network_has_matches(cli):
    chosen = ("--times", "1", "--views", "3", "--size", "32x24", "--refine", "--json", "--quiet")
    (part,) = json.loads(cli("benchmark", "--preset", "mv-demo", *chosen).out)["measurements"]
    assert part["refinement_seconds"] > 0
    (part,) = json.loads(cli("benchmark", "--preset", "mv-tiny", *chosen[:4], "--size", "28", *chosen[6:]).out)[
        "measurements"
    ]
    assert part["refinement_seconds"] is None


def test_running_out_of_memory_is_reported_in_the_table(cli, monkeypatch):
    run = NetworkPredictor.run

    def limited(self, batch, memory=None):
        if len(batch.times) == 2 and batch.images.shape[-2] == 14:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(self, batch, memory)

    monkeypatch.setattr(NetworkPredictor, "run", limited)
    ended = cli(*GRID, "--quiet")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("out of memory") == 1
    assert ended.out.count("28x28") == 2
