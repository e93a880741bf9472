"""Refinement: predicted cameras and depth approach the truth, step by step, and are unchanged without evidence."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from page4d.choices import SceneFamily
from page4d.evaluation.cameras import pair_errors
from page4d.lab.synthetic.capture import SceneRequest, sample_truth
from page4d.networks.conditioning import Conditioning, ViewGroups
from page4d.networks.config_parts import MatchTarget
from page4d.networks.inputs.matching import Matches, target_images
from page4d.networks.output import NetworkOutput, RigOutput
from page4d.records import GroundTruth
from page4d.stereo import refine
from page4d.stereo.refine import run_refinement
from page4d.stereo.state import RefinementState, StaticDepth
from tests.geometry.geometry_samples import se3_exp
from tests.stereo.synthetic_rigs import (
    FINER,
    KINDS,
    PATCH,
    filled_depth,
    refined,
    true_cameras,
    true_matches,
    with_views,
)

SIZE = (64, 80)
GRID = (8, 10)


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    return sample_truth([1, 2], SceneRequest(num_times=2, num_views=3, image_size=SIZE, spacing_deg=(15, 16)))


@pytest.fixture(scope="module")
def matches(truth: GroundTruth) -> Matches:
    return true_matches(truth)


@pytest.fixture(scope="module")
def output(truth: GroundTruth, matches: Matches) -> NetworkOutput:
    """A prediction with exact matches, wrong by some degrees and some percent, in a different unit than the truth."""
    torch.manual_seed(0)
    twist = torch.randn(2, 2, 3, 6).double() * torch.tensor([0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    pose = se3_exp(twist) @ truth.cameras.world_to_camera.double()
    pose[..., :3, 3] /= 3
    slope = torch.linspace(0.8, 1.2, SIZE[1])
    return NetworkOutput(
        world_to_camera=pose,
        intrinsics=truth.cameras.intrinsics.double() * torch.tensor([1.05, 1.05, 1])[:, None],
        depth=filled_depth(truth) / 3 * slope,
        depth_confidence=torch.full_like(truth.depth, 2.0),
        dynamic=truth.dynamic.float(),
        matches=matches,
    )


def without_matches(output: NetworkOutput) -> NetworkOutput:
    """Set the confidence of all matches to 0."""
    return replace(output, matches=replace(output.matches, confidence=torch.zeros_like(output.matches.confidence)))


def known_cameras(truth: GroundTruth) -> Conditioning:
    return Conditioning(world_to_camera=truth.cameras.world_to_camera, intrinsics=truth.cameras.intrinsics)


def rig_of(views: Sequence[NetworkOutput]) -> RigOutput:
    """Return the output of a rig with one group per view."""
    members = tuple((view,) for view in range(len(views)))
    return RigOutput(outputs=tuple(views), groups=ViewGroups(members=members))


def rotation_error_deg(output: NetworkOutput | RigOutput, truth: GroundTruth) -> float:
    errors = [
        pair_errors(found.flatten(0, 1).double(), true.flatten(0, 1).double()).rotation_deg
        for found, true in zip(output.world_to_camera, truth.cameras.world_to_camera, strict=True)
    ]
    return float(torch.cat(errors).median())


def depth_error(output: NetworkOutput, truth: GroundTruth) -> float:
    """Return the median |log| error of depth up to scale."""
    known = truth.depth > 0
    ratio = (output.depth / truth.depth).log()
    return float((ratio - ratio[known].median())[known].abs().median())


def test_cameras_and_depth_approach_the_truth(output: NetworkOutput, truth: GroundTruth):
    better = refined(output, sigma_cells=0.2)
    assert rotation_error_deg(output, truth) > 5
    assert rotation_error_deg(better, truth) < 2.2
    assert depth_error(better, truth) < 0.7 * depth_error(output, truth)  # some patches are visible in one view only
    focal, predicted, true = (
        one[..., 0, 0] for one in (better.intrinsics, output.intrinsics, truth.cameras.intrinsics)
    )
    assert (focal / true).log().abs().median() < 0.65 * (predicted / true).log().abs().median()
    assert better.depth.shape == output.depth.shape
    assert better.depth.dtype == output.depth.dtype


def test_known_cameras_improve_depth_and_do_not_replace_adjusted_ones(output: NetworkOutput, truth: GroundTruth):
    better = refined(output, conditioning=known_cameras(truth), sigma_cells=0.2)
    assert depth_error(better, truth) < 0.5 * depth_error(output, truth)
    torch.testing.assert_close(better.intrinsics, truth.cameras.intrinsics.double())
    assert 0 < rotation_error_deg(better, truth) < 2.2
    # Depth is in the unit of the adjusted cameras.
    ratio = (better.depth / truth.depth)[truth.depth > 0].median()
    assert ratio == pytest.approx(1 / 3, rel=0.1)


def test_the_path_of_a_single_view_gives_the_scale_of_depth():
    """Its predicted path is too short by a factor of 1.4."""
    request = SceneRequest(family=SceneFamily.HANDHELD, num_times=4, num_views=1, image_size=(96, 128))
    moving = sample_truth([3], request)
    matches = true_matches(moving, (MatchTarget.FIRST_TIME, MatchTarget.NEXT_TIME))
    pose = moving.cameras.world_to_camera.double().clone()
    start = pose[:, :1, :, :3, :3].transpose(-1, -2) @ pose[:, :1, :, :3, 3:]
    offset = pose[..., :3, :3].transpose(-1, -2) @ pose[..., :3, 3:] - start
    pose[..., :3, 3:] = pose[..., :3, :3] @ (start + offset / 1.4)
    short = NetworkOutput(
        world_to_camera=pose,
        intrinsics=moving.cameras.intrinsics.double(),
        depth=filled_depth(moving),
        depth_confidence=torch.full_like(moving.depth, 8.0),
        dynamic=moving.dynamic.float(),
        matches=replace(matches, confidence=0.01 * matches.confidence),
    )
    found = run_refinement(RigOutput.of(short), PATCH, FINER, known_cameras(moving), moving.images)
    assert found.rig_scale is not None
    ratio = found.output.outputs[0].depth * found.rig_scale[:, None, None, None, None] / filled_depth(moving)
    assert float(found.rig_scale) > 1.2
    assert float(ratio.median()) == pytest.approx(1.0, abs=0.06)


def test_static_depth_gives_the_scale_of_the_rest(output: NetworkOutput, truth: GroundTruth):
    """Without matches, where the network's depth has another unit than its cameras."""
    doubled, columns = without_matches(replace(output, depth=2 * filled_depth(truth) / 3)), torch.arange(SIZE[1])
    is_open = (columns >= SIZE[1] // 2).expand_as(truth.depth)
    static = [
        StaticDepth(*maps) for maps in zip((filled_depth(truth) * ~is_open).unbind(2), is_open.unbind(2), strict=True)
    ]
    found = run_refinement(RigOutput.of(doubled), PATCH, FINER, known_cameras(truth), static=static)
    torch.testing.assert_close(found.rig_scale, torch.full((2,), 1.5).double(), rtol=1e-5, atol=0.0)
    depth = found.output.outputs[0].depth * found.rig_scale[:, None, None, None, None]
    near = (depth / filled_depth(truth)).log().abs()
    assert near[~is_open].max() < 1e-4
    assert near[is_open].median() < 0.02


def test_confident_depth_moves_less(output: NetworkOutput):
    """Without confidence depth moves as with a medium one."""
    moves = []
    for value in (1.0, None, 5.0):
        confidence = None if value is None else torch.full_like(output.depth, value)
        better = refined(replace(output, depth_confidence=confidence))
        ratio = (better.depth / output.depth).log().flatten(3)
        moves.append(float((ratio - ratio.median(dim=-1, keepdim=True).values).abs().mean()))
    assert moves[0] > 1.1 * moves[1]
    assert moves[1] > 1.3 * moves[2]


def test_refinement_is_independent_of_the_unit_of_length(output: NetworkOutput):
    pose = output.world_to_camera.clone()
    pose[..., :3, 3] *= 50
    scaled = refined(replace(output, world_to_camera=pose, depth=output.depth * 50))
    torch.testing.assert_close(scaled.depth / 50, refined(output).depth, rtol=1e-4, atol=0)


def test_matches_of_moving_patches_between_instants_are_ignored(
    output: NetworkOutput, matches: Matches, truth: GroundTruth
):
    expected = matches.expected.clone()
    moving = functional.max_pool2d(truth.dynamic.float().flatten(0, 2)[:, None], PATCH).bool()
    moving = moving.reshape(*truth.depth.shape[:3], 1, -1).expand(-1, -1, -1, 2, -1)
    assert moving.any()
    confidence = matches.confidence.clone()
    expected[:, :, :, -2:][moving] = 0.1
    confidence[:, :, :, -2:][moving] = 1.0
    wrong = replace(output, matches=replace(matches, expected=expected, confidence=confidence))
    confidence = confidence.clone()
    confidence[:, :, :, -2:][moving] = 0.0
    clean = replace(output, matches=replace(matches, confidence=confidence))
    torch.testing.assert_close(refined(wrong).depth, refined(clean).depth)


def test_predictions_without_matches_are_unchanged(output: NetworkOutput):
    missing = RigOutput.of(replace(output, matches=None))
    assert run_refinement(missing, PATCH, FINER).output is missing
    uncertain = without_matches(output)
    found = refined(uncertain)
    torch.testing.assert_close(found.world_to_camera, output.world_to_camera)
    torch.testing.assert_close(found.intrinsics, output.intrinsics)
    single = uncertain.of_view(0)
    torch.testing.assert_close(refined(single).depth, single.depth)


def test_views_of_different_sizes_are_refined_together(output: NetworkOutput, matches: Matches, truth: GroundTruth):
    views = [output.of_view(view) for view in range(3)]
    whole, separate = refined(output), run_refinement(rig_of(views), PATCH, FINER).output
    torch.testing.assert_close(separate.world_to_camera, whole.world_to_camera)
    torch.testing.assert_close(torch.cat([view.depth for view in separate.views], dim=2), whole.depth)
    # The last view without its lowest rows of patches: a smaller image, with a different middle.
    rows = 6
    step = (SIZE[0] - rows * PATCH) / 2 / (max(SIZE) / 2)

    def with_cut_target(view: int) -> Matches:
        """Return matches with positions in the cut image relative to its own middle."""
        own = matches.of_view(view)
        expected, confidence = own.expected.clone(), own.confidence.clone()
        for index, kind in enumerate(KINDS):
            if int(target_images(kind, 2, 3)[1][0, view]) == 2:
                expected[:, :, :, index, :, 1] += step
                below = expected[:, :, :, index, :, 1] * max(SIZE) / 2 > rows * PATCH / 2
                confidence[:, :, :, index] *= ~below
        kept = slice(rows * GRID[1]) if view == 2 else slice(None)
        return replace(own, expected=expected[..., kept, :], confidence=confidence[..., kept])

    cut = [replace(view, matches=with_cut_target(index)) for index, view in enumerate(views)]
    cut[2] = replace(
        cut[2],
        depth=views[2].depth[..., : rows * PATCH, :],
        depth_confidence=views[2].depth_confidence[..., : rows * PATCH, :],
        dynamic=views[2].dynamic[..., : rows * PATCH, :],
    )
    better = run_refinement(rig_of(cut), PATCH, FINER, sigma_cells=0.2).output
    assert better.views[2].depth.shape[-2:] == (rows * PATCH, SIZE[1])
    assert rotation_error_deg(better, truth) < 2.5


def test_a_single_view_nearly_keeps_its_focal_length(output: NetworkOutput):
    """Matches in time that are spread from the image center are explained by any longer focal length."""
    single = output.of_view(0)
    matches = single.matches
    spread = replace(
        matches,
        expected=1.3 * matches.expected[:, :, :, -1:],
        confidence=torch.ones_like(matches.confidence[:, :, :, -1:]),
        targets=KINDS[-1:],
    )
    single = replace(single, matches=spread, dynamic=torch.zeros_like(single.dynamic))
    found = refined(single)
    change = (found.intrinsics / single.intrinsics)[..., 0, 0].log().abs()
    assert 0 < change.max() < 0.1
    assert (found.world_to_camera - single.world_to_camera).abs().max() > 0.01


@pytest.mark.parametrize("views", [[0], [0, 1, 2]])
def test_depth_edges_are_aligned_with_color_edges(truth: GroundTruth, output: NetworkOutput, views: list[int]):
    """Dilated depth of low confidence is cut at the edges of surfaces."""
    chosen = with_views(truth, views)
    known, log_depth = chosen.depth > 0, filled_depth(chosen).log()
    frames = log_depth.flatten(0, 2)[:, None]
    near, far = (functional.max_pool2d(sign * frames, 3, stride=1, padding=1) * sign for sign in (-1, 1))
    near, range_of_log_depth = near.view_as(log_depth), (far - near).view_as(log_depth)
    dilated = NetworkOutput(
        world_to_camera=true_cameras(chosen).world_to_camera,
        intrinsics=true_cameras(chosen).intrinsics,
        depth=near.exp(),
        depth_confidence=1 + 3 * (range_of_log_depth < 0.05).float(),
        dynamic=chosen.dynamic.float(),
        matches=replace(
            output.matches,
            expected=output.matches.expected[:, :, views],
            confidence=torch.zeros_like(output.matches.confidence[:, :, views]),
        ),
    )
    edges = known & (range_of_log_depth > 0.3)

    def error(depth: Tensor) -> Tensor:
        return (depth.log() - log_depth).abs()[edges].mean()

    assert error(refined(dilated, images=chosen.images).depth) < 0.8 * error(dilated.depth)


class StepRecorder:
    """Replaces the steps of a refinement by steps that record their input and output states."""

    def __init__(self, monkeypatch) -> None:
        self.calls: list[tuple[str, RefinementState, RefinementState]] = []
        monkeypatch.setattr(refine, "STEPS", tuple(self._recorded(step) for step in refine.STEPS))

    def _recorded(self, step):
        def recorded(state: RefinementState) -> RefinementState:
            found = step(state)
            self.calls.append((step.__name__, state, found))
            return found

        return recorded

    @property
    def unchanged(self) -> list[str]:
        """Steps that returned their input."""
        return [name for name, before, after in self.calls if after is before]


def test_steps_run_in_order_and_return_new_states(monkeypatch, output: NetworkOutput, truth: GroundTruth):
    names = [step.__name__ for step in refine.STEPS]
    recorder = StepRecorder(monkeypatch)
    found = refined(output, conditioning=known_cameras(truth), images=truth.images)
    assert names == ["adjust_cameras", "fit_known_cameras", "sweep_pixels", "fuse_views", "align_edges"]
    assert [name for name, _, _ in recorder.calls] == names
    assert recorder.unchanged == []
    for (_, _, previous), (_, state, _) in zip(recorder.calls, recorder.calls[1:], strict=False):
        assert state is previous
    for _, before, after in recorder.calls:
        assert after.evidence is before.evidence
        assert all(
            not torch.equal(new, old) for new, old in zip(after.log_correction, before.log_correction, strict=True)
        )
    last = torch.stack(recorder.calls[-1][2].log_correction, dim=2)
    torch.testing.assert_close(found.depth, output.depth * last.exp())


@pytest.mark.parametrize(
    ("num_views", "has_images", "has_poses", "unchanged"),
    [
        (3, True, False, ["fit_known_cameras"]),
        (3, False, True, ["sweep_pixels", "align_edges"]),
        (1, True, False, ["fit_known_cameras", "sweep_pixels", "fuse_views"]),
        (1, False, False, ["fit_known_cameras", "sweep_pixels", "fuse_views", "align_edges"]),
    ],
)
def test_steps_without_their_evidence_return_the_state_unchanged(
    monkeypatch,
    output: NetworkOutput,
    truth: GroundTruth,
    num_views: int,
    has_images: bool,
    has_poses: bool,
    unchanged: list[str],
):
    recorder = StepRecorder(monkeypatch)
    options = {"images": truth.images[:, :, :num_views]} if has_images else {}
    if has_poses:
        options["conditioning"] = known_cameras(truth)
    refined(output if num_views == 3 else output.of_view(0), **options)
    assert recorder.unchanged == unchanged


def test_known_poses_without_a_baseline_are_not_fitted(monkeypatch, output: NetworkOutput, truth: GroundTruth):
    recorder = StepRecorder(monkeypatch)
    pose = truth.cameras.world_to_camera.clone()
    pose[..., :3, 3] = 0
    refined(output, conditioning=Conditioning(world_to_camera=pose, intrinsics=truth.cameras.intrinsics))
    assert recorder.unchanged == ["fit_known_cameras", "sweep_pixels", "align_edges"]
