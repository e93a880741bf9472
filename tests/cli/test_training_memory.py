"""A training that cannot fit into memory is refused before anything is allocated."""

from pathlib import Path

import pytest

from page4d.lab.training import optimizers as memory
from tests.fuzzing import bounded
from tests.pretraining.recordings import write_recording

RUN = ("--until-samples", "2")
STEPS = ("--steps", "1", "--batch", "4")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("train", "--preset", "tiny", "--model", "mv-large", *RUN), "weights and optimizer"),
        (("pretrain", "{scene}", "--encoder", "vit-h14", "--size", "28", *STEPS), "weights and optimizer"),
        (("pretrain", "{scene}", "--size", "16384", *STEPS), "a batch"),
        (("pretrain", "{scene}", "--method", "dino", "--size", "16384", *STEPS), "a batch"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else value[0],
)
def test_a_training_beyond_the_memory_is_refused_before_it_starts(
    cli, words: tuple[str, ...], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "usable_bytes", lambda _: 10**9)
    scene = write_recording(tmp_path / "scene")
    with bounded(seconds=20, megabytes=200):
        ended = cli(*(word.format(scene=scene) for word in words), "--out", tmp_path / "run", "--device", "cpu")
    assert ended.code == 7
    assert f"GB or more, mostly for {part}, and 1.0 GB are usable on cpu" in ended.err
    assert "use a smaller" in ended.err
    assert not (tmp_path / "run" / "checkpoint.pt").exists()
