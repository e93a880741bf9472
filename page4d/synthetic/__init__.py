"""Made-up captures with exact truth: a furnished room, a rig, a ray caster, and the files or records of both.

The world is metric and its axes are those of OpenCV for a level camera: x right, y down, z forward. The floor is the
plane y = 0, so height above the floor is -y. The cameras' world is this world.
"""
