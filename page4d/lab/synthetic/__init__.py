"""Synthetic multi-view captures with exact ground truth: random worlds and rigs, a ray caster, videos and records.

Worlds are metric with the OpenCV axes of a level camera: x right, y down, z forward. The floor is the plane y = 0, so
height above the floor is -y. Camera poses refer to the same world.

From seed to images: `rigs` draws a capture volume and the cameras around it, `furnish` draws a `WorldSpec` (using
`places`, `furniture`, `people` and `materials`), `world` converts it to tensors, `render` casts `rays` and computes
radiance, and `materials` applies the photometric camera model. `capture` runs all of it, for one rig or for a batch
of training samples; `truth` derives velocities and trajectories, and `write` stores a capture in a folder.
"""
