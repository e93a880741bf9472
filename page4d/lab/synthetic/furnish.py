"""Random worlds for a rig: room or open ground, people or a table in the capture volume, objects around it."""

import math

from page4d.lab.synthetic import places
from page4d.lab.synthetic.furniture import FloorPlan, box
from page4d.lab.synthetic.materials import Material, plain_material
from page4d.lab.synthetic.people import Activity, circling_box, flying, rolling_ball, sample_person
from page4d.lab.synthetic.rigs import CaptureVolume, RigSpec, Rng
from page4d.lab.synthetic.world import ROOM_FACES, ObjectSpec, Person, WorldSpec


def sample_world(seed: int, rig: RigSpec, outdoor_probability: float = 0.25) -> WorldSpec:
    """Draw a world in which no object occludes a camera or its view of the capture volume."""
    rng = Rng(seed, "world")
    outdoors = rng.chance(outdoor_probability)
    enclosure = places.ground(rng) if outdoors else places.room_around(rng, rig)
    half, center = ((60.0, 0.0, 60.0), (0.0, 0.0, 0.0)) if outdoors else (enclosure.half, enclosure.center)
    low, high = ((center[0] - half[0], center[2] - half[2]), (center[0] + half[0], center[2] + half[2]))
    floor_plan = FloorPlan(rig, low, high)
    if rig.volume.table_height:
        objects, people = places.table_scene(rng, floor_plan, rig.volume)
    else:
        objects, people = _people_in_volume(rng, rig.volume)
    if outdoors:
        faces: tuple[Material, ...] = (enclosure.material,) * ROOM_FACES
        objects += places.surroundings(rng, floor_plan, rig)
        lights = places.sunlight(rng)
    else:
        faces = places.room_faces(rng)
        objects += places.wall_relief(rng, enclosure, faces)
        objects += places.furniture(rng, floor_plan, enclosure)
        if rig.is_in_hall:
            objects += places.fittings(rng, floor_plan, enclosure, rig)
        lights = places.room_light(rng, enclosure)
    objects += _movers(rng, floor_plan, rig)
    if rng.chance(0.25):
        people += _bystander(rng, floor_plan, rig)
    return WorldSpec(enclosure, faces, tuple(objects), tuple(people), lights, seed)


def _people_in_volume(rng: Rng, volume: CaptureVolume) -> tuple[list[ObjectSpec], list[Person]]:
    """Draw one to three people in the capture volume, sometimes on a mat."""
    count = rng.choice((1, 1, 1, 2, 2, 3))
    objects: list[ObjectSpec] = []
    if rng.chance(0.3):
        x, z = 0.75 * volume.radius, 0.75 * volume.radius * rng.uniform(0.5, 1.0)
        yaw = rng.angle()
        mat = box((-x, 0, -z), (x, 0.004, z), plain_material(rng, 0.1, 0.8, 0.8))
        objects.append(mat._replace(rotation=(0.0, yaw, 0.0)))
    people = []
    first, facing = rng.angle(), rng.angle()
    activities = (
        *(Activity.WALKING, Activity.WALKING, Activity.WALKING, Activity.STEPPING, Activity.WAVING, Activity.WAVING),
        *(Activity.EXERCISING, Activity.EXERCISING, Activity.WORKING, Activity.STANDING),
    )
    for index in range(count):
        away = 0.0 if count == 1 else 0.58 * volume.radius
        free = 0.72 * volume.radius if count == 1 else 0.58 * volume.radius * math.sin(math.pi / count) - 0.16
        angle = first + math.tau * index / count
        place = (away * math.cos(angle), away * math.sin(angle))
        activity = rng.choice(activities)
        if activity is Activity.WALKING and free < 0.2:
            activity = Activity.STEPPING
        people.append(sample_person(rng, activity, place, free, facing + rng.uniform(-1.0, 1.0)))
    return objects, people


def _movers(rng: Rng, floor_plan: FloorPlan, rig: RigSpec) -> list[ObjectSpec]:
    """Draw up to three moving objects around the capture volume."""
    objects = []
    for _ in range(rng.integer(4)):
        kind = rng.integer(3)
        reach = rng.uniform(0.3, 0.7)
        size = rng.uniform(0.1, 0.25)
        top = 2 * size if kind < 2 else 1.6
        place = floor_plan.find(
            rng, (reach, top / 2, reach), tries=6, reach=(rig.volume.radius + reach, rig.volume.radius + 3)
        )
        if place is None:
            continue
        made = (
            rolling_ball(rng, size, reach)
            if kind == 0
            else circling_box(rng, size, reach)
            if kind == 1
            else flying(rng, size, (reach - size) / 1.7, rng.uniform(0.5, 1.1))
        )
        x, z, _ = place
        objects.append(made._replace(center=(x, made.center[1], z)))
    return objects


def _bystander(rng: Rng, floor_plan: FloorPlan, rig: RigSpec) -> list[Person]:
    """Draw a person next to the capture volume, if there is room."""
    place = floor_plan.find(rng, (0.5, 0.95, 0.5), tries=8, reach=(rig.volume.radius + 0.5, rig.volume.radius + 3.5))
    if place is None:
        return []
    activity = rng.choice((Activity.WALKING, Activity.WAVING, Activity.STANDING, Activity.WORKING))
    return [sample_person(rng, activity, (place[0], place[1]), 0.22, rng.angle())]
