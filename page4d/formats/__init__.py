"""Foreign file formats: one file per format, with its reader and its writer.

* Calibrations: `cameras_json.py` (page4d's own), `colmap.py`, `nerfstudio.py`, `opencv_yaml.py`, `qualisys.py`,
  `toml_rig.py` (Pose2Sim, Anipose). `table.py` has a row for each; `calibrations.py` reads and writes any of them.
* The result of every reader is a `Calibration` (`camera_model.py`), made by the parts in `build.py` and `files.py`.
* Maps, points and others: `maps.py` (PNG), `ply.py`, `open3d.py`, `tracks.py` (NPZ), `video.py`.

A new calibration format is a module with `read(path)` and a row in `table.py`.
"""
