"""Registers a capture from evidence and compares its cameras with a true calibration.

    python tools/measure_rig.py SCENE --truth SCENE/Calib.qca.txt --calib-resize crop-center --lens true
    python tools/measure_rig.py SCENE --truth SCENE/truth/cameras.json --lens unknown --seed 1

`--clouds RUN REFERENCE AGAIN` compares the clouds of three runs: with registered cameras, with the true ones, and
with these from other instants. Points within 2 cm of the reference count, both ways, at the instants that all runs
have; a similarity, from the cameras and then from nearest points, maps each run to the reference.

    python tools/measure_rig.py --false $(seq 0 39)
    python tools/measure_rig.py --apart office/cam_0 office/cam_1 stadium/cam18

count false placements, with known lenses, unknown ones and one unknown focal length: of rendered rigs of these seeds
(with `--mixed`, also of each with the one before of the same subject, people or a table), and of views of several
captures, of which those of different folders show nothing in common. Pictures are rendered, and evidence is found,
once for all lenses and mixtures.

    python tools/measure_rig.py --costs 4 16 64

prints what registration costs for rings of 4, 16 and 64 views: with simulated keypoints of one person, and with
rendered texture.
"""

import argparse
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import combinations, product
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np
import torch
from scipy.spatial import cKDTree

from page4d import Output, open_output
from page4d.choices import Registration, SceneFamily, Subject
from page4d.evaluation.cameras import absolute_errors, align_rig, pair_errors
from page4d.geometry.alignment import align_cameras, align_points
from page4d.geometry.transforms import camera_centers
from page4d.lab.synthetic.capture import RenderedSource, SyntheticCapture
from page4d.options import RegisterSettings
from page4d.rig.assembly import Assembly
from page4d.rig.checks import refuse_unconfirmed
from page4d.rig.evidence import PixelEvidence
from page4d.rig.lens import lenses_of
from page4d.rig.records import FocalSource, Lens, direction_angle_deg, rotation_angle_deg
from page4d.rig.register import assembled, placed_views
from page4d.scene.open import open_scene
from page4d.scene.records import Scene
from tests.rig.people_rig import Filming, film_people


def register(scene: Scene, options: argparse.Namespace) -> Assembly:
    """Register the scene."""
    uncalibrated = replace(scene, views=tuple(replace(view, camera=None) for view in scene.views))
    settings = RegisterSettings(
        register=Registration(options.register),
        intrinsics=options.truth if options.lens == "true" else None,
        focal=None if options.lens in ("true", "unknown") else options.lens,
        seed=options.seed,
    )
    return assembled(PixelEvidence(uncalibrated, settings))


def relative(cameras: Mapping[int, np.ndarray] | Sequence[np.ndarray], first: int, second: int) -> np.ndarray:
    """Return the pose of the second camera relative to the first."""
    return cameras[second] @ np.linalg.inv(cameras[first])


def print_pairs(found: Assembly, truth: list[np.ndarray]) -> None:
    """Print every pair that was tried, with its error."""
    for pair in found.pairs.values():
        error = ""
        if pair.rotation is not None and pair.direction is not None:
            true = relative(truth, *pair.views)
            turn = float(rotation_angle_deg(pair.rotation, true[:3, :3]))
            bend = float(direction_angle_deg(pair.direction, true[:3, 3]))
            error = f"rotation {turn:6.2f} direction {bend:6.2f}"
        control = "" if pair.control is None else f" control {pair.control:.3g}"
        names = "-".join(found.names[view] for view in pair.views)
        verdict = pair.reason or "accepted"
        print(f"pair {names} {pair.evidence:8} {error} score {pair.score:.3g}{control}: {verdict}")


def print_cameras(found: Assembly, truth: list[np.ndarray], scene: Scene) -> None:
    """Print errors of pairs of placed cameras, of centres after alignment, and of focal lengths."""
    records, of_views = placed_views(found)
    placed = {index: camera.world_to_camera for index, camera in enumerate(of_views) if camera is not None}
    if len(placed) > 1:
        mine, true = torch.stack([*placed.values()]), torch.stack([torch.from_numpy(truth[view]) for view in placed])
        pairs, transform = pair_errors(mine, true), align_rig(mine, true).transform
        turns, bends = pairs.rotation_deg, pairs.signed_direction_deg
        for (first, second), turn, bend in zip(combinations(placed, 2), turns, bends, strict=True):
            print(
                f"rig  {found.names[first]}-{found.names[second]} rotation {turn:6.2f} direction {bend:6.2f} degrees"
            )
        medians = (f"{np.median(errors):.2f} ({errors.max():.2f})" for errors in (turns, bends))
        print("rotation {}, direction {}".format(*medians))
        errors = absolute_errors(transform.apply_to_cameras(mine), true)[0] / torch.pdist(camera_centers(true)).max()
        print("centres (share of the rig's extent):", " ".join(f"{error:.3f}" for error in errors))
        if found.person_height is not None:
            height = found.person_height[0] * float(transform.scale)
            print(f"height of people: {height:.3f} in the unit of the calibration")
    for view, true_view in zip(records, scene.views, strict=True):
        assert true_view.camera is not None
        true_lens = true_view.camera.intrinsics.double().numpy()
        ratio = view.focal / float(np.sqrt(true_lens[0, 0] * true_lens[1, 1]))
        state = f"placed, residual {view.residual_px:.1f} px" if view.placed else f"not placed: {view.reason}"
        print(f"{view.view}: {state}; focal / true {ratio:.3f} (std {view.focal_std})")


THRESHOLD_M = 0.02
ROUNDS, SAMPLE, WIDTH = 20, 20_000, 3.0
"""Rounds of alignment by nearest points, points in each, and the multiple of their median distance that counts."""


def points_at(run: Output, time: float) -> np.ndarray:
    """Return the cloud of an instant."""
    return run.points(int(np.argmin(np.abs(np.asarray(run.run.times) - time)))).xyz.astype(np.float64)


def cloud_scores(run: Output, reference: Output, times: list[float]) -> dict[str, float]:
    """Return shares of the points of a run near those of the reference, and the other way, their F, and numbers.

    Source: Besl and McKay (1992), trimmed, with the scale of Umeyama (1991).
    """
    transform = align_cameras(*(one.cameras.world_to_camera[0].double() for one in (run, reference)))
    clouds = [(points_at(run, time), points_at(reference, time)) for time in times]
    random = np.random.default_rng(0)
    mine, theirs = (torch.from_numpy(np.concatenate(part)) for part in zip(*clouds, strict=True))
    chosen, tree = torch.from_numpy(random.choice(len(mine), min(SAMPLE, len(mine)), replace=False)), cKDTree(theirs)
    for _ in range(ROUNDS):
        distance, nearest = tree.query(transform.apply(mine[chosen]))
        near = torch.from_numpy(distance <= WIDTH * np.median(distance))
        transform = align_points(mine[chosen][near], theirs[nearest][near])
    pairs = [(transform.apply(torch.from_numpy(one)).numpy(), other) for one, other in clouds]
    precision = np.mean([np.mean(cKDTree(b).query(a)[0] < THRESHOLD_M) for a, b in pairs])
    recall = np.mean([np.mean(cKDTree(a).query(b)[0] < THRESHOLD_M) for a, b in pairs])
    found = {"precision": precision, "recall": recall, "F": 2 * precision * recall / max(precision + recall, 1e-9)}
    return found | {"points": len(mine) / len(theirs)}


def print_clouds(paths: list[Path]) -> None:
    """Print the scores of the registered run, those of the reference against itself, and their ratio."""
    run, reference, again = map(open_output, paths)
    common = [set(np.round(one.run.times, 3)) for one in (run, reference, again)]
    times = sorted(set.intersection(*common))
    score = partial(cloud_scores, reference=reference, times=times)
    registered, repeated = score(run), score(again)
    print(
        f"clouds at {len(times)} instants, {THRESHOLD_M} m:",
        *(f"{key} {value:.3f}" for key, value in registered.items()),
    )
    print("reference against itself:", *(f"{key} {value:.3f}" for key, value in repeated.items()))
    print("ratio:", *(f"{key} {registered[key] / max(repeated[key], 1e-9):.3f}" for key in ("F", "points")))


WRONG_DEG = 3.0
"""Rotation error between two placed cameras that counts as a false placement."""

FAMILIES = (SceneFamily.ARC, SceneFamily.RING, SceneFamily.STAGE)
LENSES = ("known", "unknown", "one focal length")


def synthetic_scene(seed: int) -> Scene:
    """Return a rig of two to six views, of people or of a table."""
    subject = Subject.PEOPLE if seed % 2 else Subject.TABLE
    capture = SyntheticCapture(
        seed=seed,
        family=FAMILIES[seed % len(FAMILIES)],
        subject=subject,
        num_views=2 + seed % 5,
        num_times=28 if subject is Subject.PEOPLE else 8,
        image_size=(360, 480),
        photometric=True,
    )
    return replace(rendered_once(capture), name=f"{seed} {capture.family} {subject}")


def rendered_once(capture: SyntheticCapture) -> Scene:
    """Return the scene of a capture, of which each frame is rendered when it is first read, and kept."""
    scene = capture.scene()
    views = []
    for view in scene.views:
        assert isinstance(view.source, RenderedSource)
        views.append(replace(view, source=replace(view.source, render=cache(view.source.render))))
    return replace(scene, views=tuple(views))


def evidence_of(scene: Scene) -> PixelEvidence:
    """Return the evidence of a scene without its cameras."""
    return PixelEvidence(replace(scene, views=tuple(replace(view, camera=None) for view in scene.views)))


def mixed_scene(scenes: Sequence[Scene]) -> Scene:
    """Return the views of several captures as one scene of the shortest of them."""
    count = min(scene.num_times for scene in scenes)
    views = [
        replace(view, name=f"{scene.name}/{view.name}", indices=view.indices[:count])
        for scene in scenes
        for view in scene.views
    ]
    name = " + ".join(scene.name for scene in scenes)
    return replace(scenes[0], name=name, views=tuple(views), times=scenes[0].times[:count])


def mixed_evidence(scene: Scene, parts: Sequence[PixelEvidence]) -> PixelEvidence:
    """Return the evidence of the views of several captures with the same instants, which was found in them."""
    mixed = evidence_of(scene)
    mixed.samples = tuple(sample for part in parts for sample in part.samples)
    mixed.people = tuple(people for part in parts for people in part.people)
    for place, source in enumerate(mixed.textures):
        vars(source)["views"] = tuple(view for part in parts for view in part.textures[place].views)
        before = 0
        for part in parts:
            found = part.textures[place].matched.items()
            source.matched.update({(one + before, other + before): matches for (one, other), matches in found})
            before += part.scene.num_views
    return mixed


def count_false(scene: Scene, evidence: PixelEvidence, parts: Sequence[int], lens: str) -> Counter[str]:
    """Register a scene, print its placed cameras, and count those that are wrong.

    Cameras of different `parts` show nothing in common; those of one are compared with the scene's cameras.
    """
    register = Registration.TEXTURE if lens == LENSES[2] else Registration.AUTO
    evidence.settings, evidence.lenses = RegisterSettings(register=register), lenses_of(evidence.scene)
    if lens == LENSES[0]:  # of captures without a calibration, the start values
        evidence.lenses = tuple(
            one if one.is_known else replace(one, focal_source=FocalSource.OPTION) for one in lenses_of(scene)
        )
    begin = time.process_time()
    found = assembled(evidence)
    placed = {view: camera for view, camera in enumerate(placed_views(found)[1]) if camera is not None}
    wrong: set[int] = set()
    worst = 0.0
    for first, second in combinations(placed, 2):
        error = 180.0 if parts[first] != parts[second] else 0.0
        cameras = [
            camera for view in (first, second) for camera in (placed[view], scene.views[view].camera) if camera
        ]
        if not error and len(cameras) == 4:
            mine, true, mine_too, true_too = (camera.world_to_camera.double().numpy() for camera in cameras)
            turns = relative([mine, mine_too], 0, 1), relative([true, true_too], 0, 1)
            error = float(rotation_angle_deg(*(turn[:3, :3] for turn in turns)))
        worst = max(worst, error)
        wrong |= {first, second} if error > WRONG_DEG else set()
    seconds = time.process_time() - begin
    counts = f"{len(placed)} of {scene.num_views} placed, {len(found.pairs)} pairs, {len(found.accepted())} accepted"
    print(f"{scene.name}, {lens}: {counts}, {worst:.2f} degrees ({seconds:.1f} s)", flush=True)
    for pair in found.accepted() if wrong else []:
        print(" ", *(found.names[view] for view in pair.views), f"{pair.evidence} {pair.score:.3g} {pair.control}")
    pairs = {"pairs": len(found.pairs), "accepted": len(found.accepted())}
    return Counter(views=scene.num_views, placed=len(placed), wrong=len(wrong), **pairs)


def print_false(scenes: Iterator[tuple[Scene, PixelEvidence, Sequence[int]]]) -> None:
    """Print the cameras of scenes that are placed, and the sums for each kind of lenses."""
    sums: dict[str, Counter[str]] = {lens: Counter() for lens in LENSES}
    for scene, evidence, parts in scenes:  # each when those before are counted: mixtures reuse what these found
        for lens in LENSES:
            sums[lens] += count_false(scene, evidence, parts, lens)
    for lens, counts in sums.items():
        print(
            f"{lens}: {counts['placed']} of {counts['views']} placed, {counts['wrong']} wrong,"
            f" {counts['accepted']} of {counts['pairs']} pairs accepted"
        )


def rendered(seeds: Sequence[int], *, are_mixed: bool) -> Iterator[tuple[Scene, PixelEvidence, Sequence[int]]]:
    """Yield rendered rigs with their evidence, and each mixed with the one before of the same subject if asked."""
    before: dict[int, tuple[Scene, PixelEvidence]] = {}
    for seed in seeds:
        scene = synthetic_scene(seed)
        evidence = evidence_of(scene)
        yield scene, evidence, [0] * scene.num_views
        if (other := before.get(seed % 2)) is not None:
            mixed = mixed_scene((other[0], scene))
            parts = [0] * other[0].num_views + [1] * scene.num_views
            yield mixed, mixed_evidence(mixed, (other[1], evidence)), parts
        if are_mixed:
            before[seed % 2] = scene, evidence


def texture_ring(count: int) -> tuple[Assembly, list[np.ndarray], float]:
    """Register a ring of rendered views, known lenses, by texture; return also the true poses, and its CPU time."""
    spacing = 360 / count
    scene = rendered_once(
        SyntheticCapture(
            seed=1, family=SceneFamily.RING, num_views=count, num_times=2, image_size=(480, 640), spacing_deg=spacing
        )
    )
    for view in scene.views:
        with view.source.open(view.source.size) as reader:
            list(reader.read([*view.indices]))
    bare = replace(scene, views=tuple(replace(view, camera=None) for view in scene.views))
    evidence = PixelEvidence(bare, RegisterSettings(register=Registration.TEXTURE))
    evidence.lenses = lenses_of(scene)
    begin = time.process_time()
    found = assembled(evidence)
    cameras = [view.camera for view in scene.views if view.camera is not None]
    return found, [one.world_to_camera.double().numpy() for one in cameras], time.process_time() - begin


def people_ring(count: int) -> tuple[Assembly, list[np.ndarray], float]:
    """Register a ring of simulated keypoints, unknown lenses; return also the true poses, and its CPU time."""
    angles = tuple(360 / count * np.arange(count))
    rig = film_people(Filming(angles_deg=angles, num_instants=50, noise_px=3.0, bias_px=4.0, seed=1))
    start = rig.lenses[0].intrinsics * [[1.4, 1, 1], [1, 1.4, 1], [1, 1, 1]]
    lenses = [Lens(intrinsics=start, image_size=lens.image_size) for lens in rig.lenses]
    names = tuple(f"cam{view:02}" for view in range(count))
    found = Assembly(names=names, lenses=lenses, people=rig.people, num_instants=rig.num_instants)
    begin = time.process_time()
    found.run()
    refuse_unconfirmed(found)
    return found, [*rig.world_to_camera], time.process_time() - begin


def print_costs(counts: Sequence[int]) -> None:
    """Print CPU time, peak memory and errors of the registration of rings, by people and by texture."""
    for ring, count in product((people_ring, texture_ring), sorted(counts)):
        found, truth, seconds = ring(count)
        memory, cameras = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, found.cameras()
        turns = [
            float(rotation_angle_deg(*(relative(side, *pair)[:3, :3] for side in (cameras, truth))))
            for pair in combinations(cameras, 2)
        ]
        print(
            f"{ring.__name__}, {count} views: {len(cameras)} placed, {len(found.pairs)} pairs, {seconds:.0f} CPU s,"
            f" {memory:.0f} MB, rotation {np.median(turns or [np.nan]):.2f} ({max(turns, default=np.nan):.2f})"
        )


def mixed_views(paths: Sequence[Path]) -> tuple[Scene, PixelEvidence, Sequence[int]]:
    """Return the named views of several captures as one scene, its evidence, and the capture of each."""
    folders = list(dict.fromkeys(path.parent for path in paths))
    scenes = []
    for folder in folders:
        scene, names = open_scene(folder), {path.stem for path in paths if path.parent == folder}
        scenes.append(replace(scene, views=tuple(view for view in scene.views if view.name in names)))
    mixed = mixed_scene(scenes)
    return mixed, evidence_of(mixed), [number for number, scene in enumerate(scenes) for _ in scene.views]


def main() -> None:
    """Register and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scene", type=Path, nargs="?")
    parser.add_argument("--false", type=int, nargs="+", metavar="SEED")
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--apart", type=Path, nargs="+", metavar="VIEW")
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--calib-resize", default=None)
    parser.add_argument("--lens", default="unknown", help="true, unknown, or a focal length as --focal takes it")
    parser.add_argument("--register", default="auto", choices=["auto", "people", "texture"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--costs", type=int, nargs="+", metavar="VIEWS")
    parser.add_argument("--clouds", type=Path, nargs=3, metavar=("RUN", "REFERENCE", "AGAIN"))
    options = parser.parse_args()
    if options.costs is not None:
        print_costs(options.costs)
        return
    if options.clouds is not None:
        print_clouds(options.clouds)
        return
    if options.false is not None or options.apart is not None:
        rigs = rendered(options.false, are_mixed=options.mixed) if options.apart is None else None
        print_false(rigs or iter([mixed_views(options.apart)]))
        return
    scene = open_scene(options.scene, calibration=options.truth, calibration_resize=options.calib_resize)
    truth = [view.camera.world_to_camera.double().numpy() for view in scene.views if view.camera is not None]
    found = register(scene, options)
    print_cameras(found, truth, scene)
    print_pairs(found, truth)
    for stage, seconds in found.seconds.items():
        print(f"{stage}: {seconds:.1f} s")


if __name__ == "__main__":
    main()
