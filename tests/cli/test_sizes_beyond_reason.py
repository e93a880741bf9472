"""Sizes and counts beyond reason are refused before any work, with the limit named."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from page4d.weights.resolve import bundled_weights
from page4d_cli.app import run
from tests.fuzzing import bounded

DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("inspect-shapes", "--views", "100000000"), "65536"),
        (("inspect-shapes", "--views", "65536", "--times", "65536"), "at most 1,048,576"),
        (("inspect-shapes", "--batch", "9223372036854775808"), "--batch"),
        (("inspect-shapes", "--size", "1000000000"), "sides of 1 to 16384"),
        (("inspect-shapes", "--size", DIGITS), "sides of 1 to 16384"),
        (("inspect-shapes", "--size", "16384x0"), "sides of 1 to 16384"),
        (("inspect-shapes", "--model", "mv-demo", "--size", "16000"), "fewer or smaller images"),
        (("benchmark", "--views", "1,1000000000"), "from 1 to 100,000"),
        (("benchmark", "--times", DIGITS), "from 1 to 100,000"),
        (("benchmark", "--size", f"{DIGITS}x8"), "is not of the form WxH"),
        (("synthesize", "--out", "{out}", "--frames", "1000000000"), "100000"),
        (("synthesize", "--out", "{out}", "--views", "65"), "64"),
        (("synthesize", "--out", "{out}", "--size", "100000x100000"), "less than or equal to 8192"),
        (("synthesize", "--out", "{out}", "--fps", "nan"), "--fps"),
        (("synthesize", "--out", "{out}", "--fps", "inf"), "fps is inf"),
        (("synthesize", "--out", "{out}", "--spacing", "nan"), "--spacing"),
        (("synthesize", "--out", "{out}", "--readout", "1e12"), "readout_s is"),
        (("synthesize", "--out", "{out}", "--seed", DIGITS), "--seed"),
        (("train", "--out", "{out}", "--until-seconds", "nan"), "seconds"),
        (("train", "--out", "{out}", "--until-seconds", "1e300"), "up to 1e+09"),
        (("train", "--out", "{out}", "--until-samples", "9223372036854775808"), "9,007,199,254,740,992"),
        (("train", "--out", "{out}", "--until-samples", "9", "--learning-rate", "nan"), "learning_rate is nan"),
        (("train", "--out", "{out}", "--until-samples", "9", "--learning-rate", "inf"), "learning_rate is inf"),
        (("train", "--out", "{out}", "--until-samples", "9", "--learning-rate", "1e30"), "less than or equal to 1"),
        (("train", "--out", "{out}", "--until-samples", "9", "--learning-rate", "-1"), "greater than 0"),
        (("train", "--out", "{out}", "--until-samples", "9", "--decay-fraction", "nan"), "decay_fraction is nan"),
        (("train", "--out", "{out}", "--until-samples", "9", "--workers", "1000000000"), "1024"),
        (("train", "--out", "{out}", "--until-samples", "9", "--workers", "1024"), "CPU cores"),
        (("train", "--out", "{out}", "--until-samples", "9", "--threads", "1000000000"), "1024"),
        (("train", "--out", "{out}", "--until-samples", "9", "--seed", "9223372036854775808"), "seed"),
        (("pretrain", "{out}", "--out", "{out}", "--steps", "9223372036854775808"), "9,007,199,254,740,992"),
        (("pretrain", "{out}", "--out", "{out}", "--steps", "1", "--until-seconds", "inf"), "seconds"),
        (("pretrain", "{out}", "--out", "{out}", "--steps", "1", "--batch", "1000000000"), "65536"),
        (("pretrain", "{out}", "--out", "{out}", "--steps", "1", "--size", "1000000000"), "16384"),
        (("pretrain", "{out}", "--out", "{out}", "--steps", "1", "--learning-rate", "nan"), "learning_rate is nan"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_a_number_beyond_reason_is_refused_with_the_limit(words: tuple[str, ...], named: str, tmp_path, capfd):
    out = tmp_path / "out"
    with bounded(seconds=10):
        assert run([word.format(out=out) for word in words]) == 2
    message = " ".join(capfd.readouterr().err.split())
    assert named in message
    assert len(message) < 1000
    assert not out.exists()


Command = Callable[[Path, str], tuple[str, ...]]


@pytest.mark.parametrize(
    "command",
    [
        lambda file, pin: ("benchmark", "--weights", str(file), "--sha256", pin),
        lambda file, pin: ("inspect-shapes", "--weights", str(file), "--sha256", pin),
        lambda file, pin: (
            *("train", "--out", "run", "--weights", str(file), "--sha256", pin),
            *("--preset", "tiny", "--until-samples", "4"),
        ),
        lambda file, pin: ("reconstruct", "samples/room", "--out", "out", "--weights", str(file), "--sha256", pin),
    ],
    ids=["benchmark", "inspect-shapes", "train", "reconstruct"],
)
def test_row_54_weights_with_another_hash_are_refused(command: Command, tmp_path, capfd, monkeypatch):
    file = tmp_path / "model.safetensors"
    content = bytearray(bundled_weights().read_bytes())
    pin = hashlib.sha256(content).hexdigest()
    content[-7] ^= 4
    file.write_bytes(content)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "samples").symlink_to(Path(__file__).parents[2] / "samples")
    assert run(command(file, pin)) == 4
    found = hashlib.sha256(content).hexdigest()
    assert f"error: model.safetensors has sha256 {found[:12]}.., expected {pin[:12]}.." in capfd.readouterr().err
    assert run(command(file, "ab12")) == 2
    assert "'ab12' is not a SHA-256" in capfd.readouterr().err
    words = [word for word in command(file, pin) if word not in ("--weights", str(file))]
    assert run(words) == 2
    assert "--sha256 without weights" in capfd.readouterr().err
