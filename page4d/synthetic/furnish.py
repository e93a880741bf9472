"""Draw a world for a shot: a room or open ground, people or a laid table on the stage, moving things around it."""

import math

from page4d.synthetic.blueprint import Person, Plan, Thing
from page4d.synthetic.camera_rigs import Shot, Stage
from page4d.synthetic.furniture import box
from page4d.synthetic.materials import Material, plain_material
from page4d.synthetic.movers import circling_box, flying, rolling_ball
from page4d.synthetic.outdoors import ground, sunlight, surroundings
from page4d.synthetic.people import Doing, sample_person
from page4d.synthetic.place import Space
from page4d.synthetic.rng import Dice
from page4d.synthetic.room import furniture, room_around, room_faces, room_light, wall_relief
from page4d.synthetic.tabletop import table_scene
from page4d.synthetic.world import ROOM_FACES


def sample_plan(seed: int, shot: Shot, outdoor_probability: float = 0.25) -> Plan:
    """Draw a world in which every camera of a shot is free and sees the stage."""
    dice = Dice(seed, "world")
    outdoors = dice.chance(outdoor_probability)
    around = ground(dice) if outdoors else room_around(dice, shot)
    half, center = ((60.0, 0.0, 60.0), (0.0, 0.0, 0.0)) if outdoors else (around.half, around.center)
    low, high = ((center[0] - half[0], center[2] - half[2]), (center[0] + half[0], center[2] + half[2]))
    space = Space(shot, low, high)
    if shot.stage.table_height:
        things, people = table_scene(dice, space, shot.stage)
    else:
        things, people = _crowd(dice, shot.stage)
    if outdoors:
        faces: tuple[Material, ...] = (around.material,) * ROOM_FACES
        things += surroundings(dice, space, shot)
        lights = sunlight(dice)
    else:
        faces = room_faces(dice)
        things += wall_relief(dice, around, faces)
        things += furniture(dice, space, around)
        lights = room_light(dice, around)
    things += _movers(dice, space, shot)
    if dice.chance(0.25):
        people += _bystander(dice, space, shot)
    return Plan(around, faces, tuple(things), tuple(people), lights, seed)


def _crowd(dice: Dice, stage: Stage) -> tuple[list[Thing], list[Person]]:
    """Put one to three people on the stage, sometimes on a platform like a treadmill's or a mat."""
    count = dice.pick((1, 1, 1, 2, 2, 3))
    things: list[Thing] = []
    if dice.chance(0.3):
        x, z = 0.75 * stage.radius, 0.75 * stage.radius * dice.between(0.5, 1.0)
        yaw = dice.angle()
        mat = box((-x, 0, -z), (x, 0.004, z), plain_material(dice, 0.1, 0.8, 0.8))
        things.append(mat._replace(turned=(0.0, yaw, 0.0)))
    people = []
    first, facing = dice.angle(), dice.angle()
    doings = (
        *(Doing.WALKING, Doing.WALKING, Doing.WALKING, Doing.STEPPING, Doing.WAVING, Doing.WAVING),
        *(Doing.EXERCISING, Doing.EXERCISING, Doing.WORKING, Doing.STANDING),
    )
    for index in range(count):
        away = 0.0 if count == 1 else 0.58 * stage.radius
        free = 0.72 * stage.radius if count == 1 else 0.58 * stage.radius * math.sin(math.pi / count) - 0.16
        angle = first + math.tau * index / count
        place = (away * math.cos(angle), away * math.sin(angle))
        doing = dice.pick(doings)
        if doing is Doing.WALKING and free < 0.2:
            doing = Doing.STEPPING
        people.append(sample_person(dice, doing, place, free, facing + dice.between(-1.0, 1.0)))
    return things, people


def _movers(dice: Dice, space: Space, shot: Shot) -> list[Thing]:
    """Let up to two things move around the stage, or above it where people do not reach."""
    things = []
    for _ in range(dice.below(4)):
        kind = dice.below(3)
        reach = dice.between(0.3, 0.7)
        size = dice.between(0.1, 0.25)
        top = 2 * size if kind < 2 else 1.6
        place = space.find(
            dice, (reach, top / 2, reach), tries=6, reach=(shot.stage.radius + reach, shot.stage.radius + 3)
        )
        if place is None:
            continue
        made = (
            rolling_ball(dice, size, reach)
            if kind == 0
            else circling_box(dice, size, reach)
            if kind == 1
            else flying(dice, size, (reach - size) / 1.7, dice.between(0.5, 1.1))
        )
        x, z, _ = place
        things.append(made._replace(center=(x, made.center[1], z)))
    return things


def _bystander(dice: Dice, space: Space, shot: Shot) -> list[Person]:
    """Let somebody stand or walk about beside the stage."""
    place = space.find(dice, (0.5, 0.95, 0.5), tries=8, reach=(shot.stage.radius + 0.5, shot.stage.radius + 3.5))
    if place is None:
        return []
    doing = dice.pick((Doing.WALKING, Doing.WAVING, Doing.STANDING, Doing.WORKING))
    return [sample_person(dice, doing, (place[0], place[1]), 0.22, dice.angle())]
