"""Made-up captures with exact truth: worlds and rigs drawn from seeds, a ray caster, and files or records of both.

The world is metric and its axes are those of OpenCV for a level camera: x right, y down, z forward. The floor is the
plane y = 0, so height above the floor is -y. The cameras' world is this world.

From a seed to images: `shots` draws a stage and the cameras around it, `furnish` a plan of what is there (`room`,
`outdoors`, `tabletop`, `people`, `movers`), `plan` turns plans into a `World` of tensors, `render` casts `rays` and
colours what they meet (`shade`, `texture`), and `appearance` makes images of the light. `sampler` does all of it for
training, `capture` for one rig, `write` for a folder.
"""
