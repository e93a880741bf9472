"""Foreign file formats: one file per format, with its reader and its writer.

* Calibrations: `table.py` has a row for each format, with its module; `calibrations.py` reads and writes any of them.
* The result of every reader is a `Calibration` (`camera_model.py`), made by the parts in `build.py` and `files.py`.
* Maps, points and others: `maps.py` (PNG), `depth_files.py` (depth of other programs), `ply.py`, `open3d.py`,
  `tracks.py` (NPZ), `video.py`.

A new calibration format is a module with `read(path)` and a row in `table.py`.
"""
