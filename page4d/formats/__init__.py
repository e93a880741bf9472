"""Readers of camera calibrations.

* `record.py`: `Calibration` and `CalibratedCamera`, the result of every reader.
* `read.py`: `read_calibration`, and `FORMATS`, the table of formats with their readers.
* One file per format: `colmap.py`, `nerfstudio.py`, `opencv_yaml.py`, `page4d_json.py`, `pose2sim.py`, `qualisys.py`.
* `write.py`: writers for other programs.
* Shared by the readers: `files.py` (bounded reading, error messages), `build.py` (cameras from numbers),
  `grouping.py` (views and frames from image names).

To add a format, write a function `read_<format>(path) -> Calibration` in a new file, add a row to `FORMATS`, name the
format in `files.SUPPORTED_FORMATS`, and add a writer to `tests/scene/calibration_writers.py`: the tests then compare
its pixels, names, sizes and unit with those of the other formats.
"""
