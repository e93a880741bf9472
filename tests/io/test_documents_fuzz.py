"""For any edited document, its reader returns a record or raises a Page4DError, in bounded time and memory."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from page4d.evaluation.comparison import open_truth
from page4d.formats.calibrations import read_calibration
from page4d.io.json_records import config_to_json
from page4d.lab.pretraining.config import PRESETS as PRETRAINING
from page4d.lab.pretraining.config import PretrainConfig
from page4d.lab.training.config import TRAINING_PRESETS as TRAINING
from page4d.lab.training.config import TrainConfig
from page4d.networks.config import NetworkConfig
from page4d.networks.encoders.build import ENCODER_PRESETS, encoder_from_json
from page4d.networks.presets import PRESETS as NETWORKS
from page4d.output.reader import open_output
from page4d.scene.clocks import read_sync_file
from tests.fuzzing import bounded, fuzz, mutated_json, read_or_refuse
from tests.output.output_scene import export, made_capture
from tests.scene.calibration_writers import WRITERS, make_rig

SYNC = {"views": {"cam01": {"offset_s": 0.25, "rate": 1.001}, "cam02": {"offset_s": -3.0}, "cam03": {}}}


def refuse_or_return(read: Callable[[], object]) -> None:
    with bounded():
        read_or_refuse(read)


@fuzz(60)
@given(text=mutated_json(SYNC))
def test_an_edited_sync_file_is_read_or_refused(text: str, folder: Path) -> None:
    path = folder / "sync.json"
    path.write_text(text)
    refuse_or_return(lambda: read_sync_file(path, ["cam01", "cam02", "cam03"]))


@fuzz(60)
@given(
    content=st.one_of(
        st.binary(max_size=300),
        st.text(alphabet="cam01.offset_s = [{\"'}]\n#1e5-+\\tu", max_size=200).map(str.encode),
        st.text(alphabet='{}[]":,.0123456789-eNanInfitycm_s\\ \n', max_size=60).map(str.encode),
    )
)
@pytest.mark.parametrize("name", ["sync.json", "sync.toml"])
def test_arbitrary_bytes_are_refused_as_a_sync_file(name: str, content: bytes, folder: Path) -> None:
    (folder / name).write_bytes(content)
    refuse_or_return(lambda: read_sync_file(folder / name, ["cam01"]))


CONFIGURATIONS: dict[str, tuple[Callable[[str], object], str]] = {
    "train": (TrainConfig.from_json, next(iter(TRAINING.values())).to_json()),
    "pretrain": (PretrainConfig.from_json, next(iter(PRETRAINING.values())).to_json()),
    "network": (NetworkConfig.from_json, next(iter(NETWORKS.values())).to_json()),
    "encoder": (encoder_from_json, config_to_json(next(iter(ENCODER_PRESETS.values())))),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
@fuzz(40)
@given(draws=st.data())
def test_an_edited_configuration_is_read_or_refused(name: str, draws: st.DataObject) -> None:
    read, valid = CONFIGURATIONS[name]
    text = draws.draw(mutated_json(json.loads(valid)))
    refuse_or_return(lambda: read(text))


@pytest.mark.parametrize("name", ["nerfstudio", "truth", "output"])
@fuzz(40)
@given(draws=st.data())
def test_an_edited_json_calibration_is_read_or_refused(name: str, draws: st.DataObject, folder: Path) -> None:
    path = WRITERS[name](folder, make_rig())
    path.write_text(draws.draw(mutated_json(json.loads(path.read_text(encoding="utf-8-sig")))))
    refuse_or_return(lambda: read_calibration(path))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run."""
    out = tmp_path_factory.mktemp("fuzz") / "out"
    export(out, made_capture(1))
    return out


@pytest.mark.parametrize("name", ["run.json", "cameras.json"])
@fuzz(40)
@given(draws=st.data())
def test_an_edited_record_of_a_run_is_read_or_refused(name: str, draws: st.DataObject, run: Path) -> None:
    valid = (run / name).read_text()
    (run / name).write_text(draws.draw(mutated_json(json.loads(valid))))
    try:
        refuse_or_return(lambda: open_output(run))
    finally:
        (run / name).write_text(valid)


CAPTURE = {"options": {"fps": 12.0, "seed": 1}, "page4d": "0.2.0"}


@fuzz(40)
@given(text=mutated_json(CAPTURE))
def test_an_edited_capture_of_ground_truth_is_read_or_refused(text: str, folder: Path) -> None:
    truth = folder / "truth"
    truth.mkdir(exist_ok=True)
    rig = json.loads(WRITERS["truth"](truth, make_rig()).read_text(encoding="utf-8-sig"))
    for camera in rig["cameras"].values():
        del camera["distortion"]
    (truth / "cameras.json").write_text(json.dumps(rig))
    (truth / "capture.json").write_text(text)
    refuse_or_return(lambda: open_truth(truth))
