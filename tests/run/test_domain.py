"""Warnings of footage unlike the training set, and the banner of previews: graded, with reasons and a remedy."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from page4d.choices import CameraMotion, Poses
from page4d.geometry.alignment import disagreement_deg
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.io.json_records import read_model
from page4d.networks.ood import OOD_MESSAGES
from page4d.options import in_options
from page4d.output.layout import OutputLayout
from page4d.output.record import UNTRAINED_NOTICE, ChunkRecord, NetworkRecord, RunRecord
from page4d.run.domain import OOD_WARNING, Domain, KnownCameras
from page4d.run.predictor import PredictedChunk
from page4d.run.reconstruct import reconstruct
from page4d.scene.batches import FrameBatch
from page4d.weights.catalogue import CATALOGUE
from page4d.weights.loading import BUNDLED_NOTICE
from tests.run.test_reconstruct import CAPTURE, SETTINGS, in_random_world, uncalibrated
from tests.run.truth import TruthPredictor

SUGGESTED = [entry for entry in CATALOGUE.values() if entry.commercial]
ALL_FAR = dict.fromkeys(OOD_MESSAGES, 3.0)


def registered(angle: float | None, *, are_used: bool = False) -> KnownCameras:
    return KnownCameras("registered", are_used, angle)


def text_of(ratios: dict[str, float] | None, known: KnownCameras | None = None, **options: object) -> str:
    (notice,) = Domain(ratios=ratios, known=known, **options).notices()
    return notice.text


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (1.01, "(slightly: inconsistent depth between views): cameras and depth may be wrong;"),
        (1.31, "(clearly: inconsistent depth between views): cameras and depth are probably wrong;"),
        (2.01, "(far: inconsistent depth between views): do not trust cameras and depth;"),
        (math.inf, "(far: inconsistent depth between views): do not trust cameras and depth;"),
    ],
)
def test_the_warning_is_graded_by_the_worst_indicator(ratio: float, words: str):
    text = text_of({"depth_gap": ratio, "doubt": 0.9})
    assert text.startswith(f"{OOD_WARNING} {words}")
    assert text.endswith("; give register='people' or calibration=FILE for cameras")


def test_indicators_within_their_limits_are_no_warning():
    assert Domain(ratios=dict.fromkeys(OOD_MESSAGES, 1.0), known=registered(3.0)).notices() == ()
    assert Domain().notices() == ()


def test_the_two_worst_indicators_are_the_reasons():
    text = text_of({"doubt": 1.2, "match_doubt": 1.4, "depth_gap": 3.0})
    assert "(far: inconsistent depth between views, few matches between views)" in text
    assert "cameras, depth and masks" in text


@pytest.mark.parametrize(("angle", "are_used"), [(None, False), (3.0, False), (117.0, False), (117.0, True)])
def test_the_longest_warning_has_at_most_three_lines(angle: float | None, are_used: bool):
    domain = Domain(ratios=ALL_FAR, known=registered(angle, are_used=are_used), camera_options="⟨calibration=FILE⟩")
    assert SUGGESTED
    for entry in SUGGESTED:
        assert len("warning: " + domain.notices(entry)[0].text) <= 3 * 105, domain.notices(entry)[0].text


def test_cameras_that_evidence_confirms_are_not_blamed():
    text = text_of({"depth_gap": 3.0}, registered(3.0))
    assert "): cameras are within 3 degrees of the registered ones, do not trust depth" in text
    assert "for cameras" not in text


def test_cameras_that_evidence_contradicts_make_the_whole_result_doubtful():
    text = text_of({"depth_gap": 1.1}, registered(117.0), camera_options="⟨calibration=FILE⟩")
    assert "(far): " in text
    assert "cameras differ by 117 degrees from the registered ones: do not trust cameras, depth and masks;" in text
    assert text.endswith("; give calibration=FILE for cameras")


def test_measured_depth_is_advised_only_where_a_calibration_lets_it_be_used():
    assert text_of({"doubt": 3.0}, KnownCameras("calibrated", True, 14.0)).endswith(
        "): the network's own cameras differ by 14 degrees from the calibrated ones: do not trust depth and masks; "
        "give depth=FOLDER for depth"
    )
    assert text_of({"doubt": 3.0}, registered(14.0, are_used=True)).endswith("do not trust depth and masks")


@pytest.mark.parametrize("ratios", [None, {"doubt": 0.5}])
def test_accepted_evidence_shows_wrong_cameras_without_any_indicator(ratios: dict[str, float] | None):
    text = text_of(ratios, registered(20.0))
    assert text.startswith("cameras differ by 20 degrees from the registered ones: cameras, depth and masks are")
    assert Domain(ratios=ratios, known=KnownCameras("calibrated", False, 20.0)).notices() == ()


@pytest.mark.parametrize("angle", [None, 3.0, 117.0])
@pytest.mark.parametrize("name", OOD_MESSAGES)
def test_known_cameras_of_the_result_are_never_blamed(name: str, angle: float | None):
    text = text_of({name: 3.0}, registered(angle, are_used=True))
    verdict = text.split("do not trust ")[1].split(";")[0]
    assert "depth" in verdict
    assert "cameras" not in verdict
    assert "for cameras" not in text
    wrong = "the network's own cameras differ by 117 degrees from the registered ones: "
    assert (wrong in text) == (angle == 117.0)


def test_a_rejected_refinement_is_a_warning_and_names_options_once():
    (alone,) = Domain(kept=()).notices()
    assert alone.text.startswith("held-out pixels do not support the refined cameras: those of the network are kept")
    assert alone.text.endswith("; give register='people' or calibration=FILE")
    footage, refinement = Domain(ratios={"doubt": 1.1}, kept=()).notices()
    assert footage.text.startswith(
        f"{OOD_WARNING} (clearly: low depth confidence): cameras, depth and masks are probably"
    )
    confirmed, _ = Domain(ratios={"doubt": 1.1}, kept=(), known=registered(3.0)).notices()
    assert "(slightly): cameras are within 3 degrees" in confirmed.text
    assert refinement.text == alone.text.split("; give")[0]
    (single,) = Domain(kept=(), num_views=1).notices()
    assert single.text == alone.text.split(", and depth")[0]
    assert Domain(kept=("poses",)).notices() == Domain(kept=None).notices() == ()


def test_the_record_survives_json_and_holds_all_indicators():
    domain = Domain(ratios={"doubt": 0.5, "depth_gap": math.inf}, known=registered(12.5), kept=("focal", "poses"))
    chunk = ChunkRecord(start=0, stop=1, overlap=0, seconds=0, domain=domain.record, refined=domain.refined)
    read = ChunkRecord.model_validate_json(chunk.model_dump_json())
    assert read == chunk
    assert read.domain.indicators == {"doubt": 0.5, "depth_gap": None}
    assert read.domain.camera_disagreement_deg == 12.5
    assert read.refined == ["poses", "focal"]
    older = {key: value for key, value in chunk.model_dump().items() if key not in ("domain", "refined")}
    assert ChunkRecord.model_validate(older) == chunk.model_copy(update={"domain": None, "refined": None})
    assert Domain(kept=()).record is None
    assert Domain(kept=()).refined == []


def test_the_error_of_pairs_is_that_of_their_relative_rotations_in_any_world():
    generator = torch.Generator().manual_seed(0)
    poses = torch.eye(4).repeat(20, 4, 1, 1)
    poses[..., :3, :3] = matrix_from_rotation_vector(torch.randn(20, 4, 3, generator=generator))
    world = torch.eye(4)
    world[:3, :3] = matrix_from_rotation_vector(torch.tensor([0.3, -2.0, 1.0]))
    assert disagreement_deg(poses @ world, poses) == pytest.approx(0, abs=1e-3)
    turned = poses.clone()
    angle = torch.tensor([0.0, math.radians(30), 0.0])
    turned[:, 1, :3, :3] = matrix_from_rotation_vector(angle) @ poses[:, 1, :3, :3]
    found = turned @ world
    assert disagreement_deg(found[:, [1, 3]], poses[:, [1, 3]]) == pytest.approx(30, abs=1e-3)
    assert disagreement_deg(found[:, [0, 3]], poses[:, [0, 3]]) == pytest.approx(0, abs=1e-3)
    assert disagreement_deg(found[:, :1], poses[:, :1]) == 0


class DoubtfulPredictor(TruthPredictor):
    """The truth with an indicator above its limit, a rejected refinement, and the second camera turned by 90 deg."""

    def predict(self, batch: FrameBatch, memory=None) -> PredictedChunk:
        chunk = super().predict(batch, memory)
        poses = chunk.predictions.cameras.world_to_camera.clone()
        poses[:, :, 1, :3] = (
            matrix_from_rotation_vector(torch.tensor([0.0, math.pi / 2, 0.0])).to(poses) @ poses[:, :, 1, :3]
        )
        cameras = replace(chunk.predictions.cameras, world_to_camera=poses)
        predictions = replace(chunk.predictions, cameras=cameras)
        return chunk._replace(predictions=predictions, ood={"doubt": 1.5, "match_doubt": 0.25}, kept=())


@pytest.mark.parametrize(
    ("poses", "words", "lacks"),
    [
        (None, "): cameras, depth and masks are probably wrong; give", "degrees"),
        (Poses.INPUT, "own cameras differ by 90 degrees from the calibrated ones: do not", "poses"),
        (
            Poses.PREDICTED,
            "cameras differ by 90 degrees from the calibrated ones: do not trust cameras",
            "own cameras",
        ),
    ],
)
def test_a_run_warns_once_and_records_every_chunk(poses: Poses | None, words: str, lacks: str, tmp_path: Path):
    scene = CAPTURE.scene() if poses else uncalibrated(CAPTURE.scene())
    settings = replace(SETTINGS, poses=poses or Poses.INPUT, camera_motion=CameraMotion.STATIC)
    record = reconstruct(scene, DoubtfulPredictor(CAPTURE, in_random_world), out=tmp_path / "out", settings=settings)
    (text,) = [text for text in record.warnings if text.startswith(OOD_WARNING)]
    assert words in text
    assert lacks not in text
    assert len([text for text in record.warnings if text.startswith("held-out pixels")]) == 1
    assert len(record.chunks) > 1
    for chunk in record.chunks:
        assert chunk.refined == []
        assert chunk.domain.indicators == {"doubt": 1.5, "match_doubt": 0.25}
        assert chunk.domain.camera_disagreement_deg == (None if poses is None else pytest.approx(90, abs=0.1))
    assert read_model(OutputLayout(tmp_path / "out", scene.view_names).run, RunRecord) == record


BUNDLED = NetworkRecord(name="mv-demo", trained=True, notice=BUNDLED_NOTICE)
DOMAIN = Domain(ratios={"doubt": 1.5}, known=KnownCameras("calibrated", True, 3.0))
ADVISES = in_options(DOMAIN.notices()[0].marked_text)
UNLIKE = ADVISES.removesuffix("; give --depth FOLDER for depth")
SUGGESTS = in_options(DOMAIN.notices(CATALOGUE["da3-small"])[0].marked_text)


@pytest.mark.parametrize(
    ("network", "warnings", "text"),
    [
        (BUNDLED, [BUNDLED_NOTICE, "common span 0.00-0.08 s"], ""),
        (BUNDLED, [BUNDLED_NOTICE, UNLIKE], UNLIKE),
        (BUNDLED, [ADVISES], UNLIKE),
        (BUNDLED, [SUGGESTS], UNLIKE),
        (NetworkRecord(name="own", trained=True), [UNLIKE], UNLIKE),
        (NetworkRecord(name="x", trained=False), [], UNTRAINED_NOTICE),
    ],
    ids=[
        "the sample",
        "footage unlike the training set",
        "an advice",
        "a suggestion",
        "an own network",
        "an untrained network",
    ],
)
def test_the_banner_warns_of_results_that_are_not_to_be_trusted(network, warnings, text) -> None:
    assert RunRecord.banner.fget(SimpleNamespace(network=network, warnings=warnings)) == text


def test_the_warning_names_the_option_of_a_checkpoint_its_licence_and_its_size() -> None:
    assert SUGGESTS.endswith("--weights da3-small (Apache-2.0, 0.1 GB)")
