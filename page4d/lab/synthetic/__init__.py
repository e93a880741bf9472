"""Synthetic multi-view captures with exact ground truth: random worlds and rigs, a ray caster, videos and records.

Worlds are metric with the OpenCV axes of a level camera: x right, y down, z forward. The floor is the plane y = 0, so
height above the floor is -y. Camera poses refer to the same world.

From seed to images: `camera_rigs` draws a capture volume and the cameras around it, `furnish` draws a `WorldSpec`
(using `room`, `hall`, `outdoors`, `tabletop`, `people` and `movers`), `world_spec` converts specs into a `World`
of tensors, `render` casts `rays`, `shade` and `texture` compute radiance, and `appearance` applies the photometric
camera model. `sampler` runs all of it for training, `capture` for one rig, and `write` stores a capture in a folder.
"""
