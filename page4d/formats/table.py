"""The calibration formats as data: how their files are recognized, read and written. Imports no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from page4d.choices import CalibrationFormat

if TYPE_CHECKING:
    from page4d.formats.camera_model import Calibration


@dataclass(frozen=True)
class RigFormat:
    """A calibration format: how its files are recognized, and the functions that read and write them.

    `patterns` match lower-case file names that are probably calibrations. A document is recognized by its content:
    by a key path that `keys` matches (`page4d.formats.files.key_paths`). `reader` in `module` is a function
    `read(path, content, poses) -> Calibration` of the parsed document; without `poses` it needs none, which only
    `lenses` formats distinguish. A file of a format that `is_single` holds one camera, and its reader also takes a
    list of paths and documents. A format without `keys` spans a folder: `is_folder(path)` recognizes it, and
    `read(path, views)` gets the names of the views, if they are known. A format with `advice`, how to convert its
    files, is not read. A format that is `written` has a `writer` `write(calibration, path)`, and its files end with
    `suffix`, "" for a folder that contains a file of the first name in `patterns`. Of formats with one suffix, that
    whose pattern a name matches first is written.
    """

    name: str
    module: str
    patterns: tuple[str, ...] = ()
    keys: str = ""
    reader: str = "read"
    lenses: bool = False
    is_single: bool = False
    advice: str = ""
    written: CalibrationFormat | None = None
    writer: str = "write"
    suffix: str = ""

    @property
    def read(self) -> "Callable[..., Calibration]":
        """The reader."""
        read: Callable[..., Calibration] = self._function(self.reader)
        return read

    @property
    def is_folder(self) -> Callable[[Path], bool]:
        """What recognizes a folder of a format without `keys`."""
        is_folder: Callable[[Path], bool] = self._function("is_folder")
        return is_folder

    @property
    def write(self) -> "Callable[[Calibration, Path], object]":
        """The writer of static cameras with image sizes."""
        write: Callable[[Calibration, Path], object] = self._function(self.writer)
        return write

    def _function(self, name: str) -> Any:
        return getattr(import_module(f"page4d.formats.{self.module}"), name)


CAMERA_MATRIX = "(?i:cm|(?:camera|intrinsics?)?_?(?:mtx|mat|matrix))"
"""Pattern of the keys of a camera matrix, besides single letters."""

_LENS = f"[Kk]|fx|principal_point|intrinsics_0|{CAMERA_MATRIX}"
_FIRST = "(?i:0|1|l|left)"

FORMATS = (
    RigFormat(
        "COLMAP",
        "colmap",
        ("cameras.bin", "cameras.txt", "images.bin", "images.txt"),
        written=CalibrationFormat.COLMAP,
    ),
    RigFormat("DAT files", "dat_files", ("rot_trans_*.dat", "*_rot_trans.dat")),
    RigFormat(
        "MATLAB objects",
        "",
        keys="([^/]+/)*<object>",
        advice="save it in MATLAB as a struct: s = toStruct(stereoParams); save('calibration.mat', 's')",
    ),
    RigFormat(
        "MATLAB",
        "matlab",
        ("*calib*.mat", "*dannce*.mat", "*label3d*.mat", "*param*.mat", "*stereo*.mat"),
        keys="params/#/K|([^/]+/)?CameraParameters1|fc_left",
        lenses=True,
    ),
    RigFormat(
        "MATLAB",
        "matlab",
        keys="([^/]+/)?(RDistort|RadialDistortion)|kc",
        reader="read_lenses",
        lenses=True,
        is_single=True,
    ),
    RigFormat("AliceVision", "", ("*.sfm",), "poses/#/poseId", advice="export a COLMAP scene in Meshroom"),
    RigFormat("OpenMVG", "", ("sfm_data.json",), "sfm_data_version", advice="use openMVG_main_openMVG2Colmap"),
    RigFormat("Dynamic 3D Gaussians", "json_rigs", ("train_meta.json",), keys="fn/#/#", reader="read_gaussians"),
    RigFormat("Kalibr", "yaml_rigs", keys="[^#]+/camera_model", reader="read_kalibr", lenses=True),
    RigFormat("MC-Calib", "yaml_rigs", keys=r"camera_\d+/camera_matrix", reader="read_mc_calib", lenses=True),
    RigFormat(
        "OpenCV stereo",
        "yaml_rigs",
        keys=rf"[MK][01]|{CAMERA_MATRIX}_?{_FIRST}|{_FIRST}[_.]?{CAMERA_MATRIX}|{_FIRST}[_.][MK]",
        reader="read_stereo",
        lenses=True,
    ),
    RigFormat(
        "JARVIS",
        "yaml_rigs",
        keys="intrinsicMatrix",
        reader="read_single_cameras",
        lenses=True,
        is_single=True,
    ),
    RigFormat(
        "ROS camera_info",
        "yaml_rigs",
        ("*calib*.npz", "*camera*.npz", "*intrinsic*.npz", "*stereo*.npz"),
        keys=f"{CAMERA_MATRIX}|distortion_model|[Kk]s?|rvec|principal_point",
        reader="read_single_cameras",
        lenses=True,
        is_single=True,
    ),
    RigFormat("OpenCV stereo", "yaml_rigs", keys="R", reader="read_stereo", lenses=True),
    RigFormat(
        "OpenCV YAML",
        "opencv_yaml",
        ("*.yml", "*.yaml", "intr[i_]*.json", "extr[i_]*.json", "intr[i_]*.xml", "extr[i_]*.xml"),
        keys=r"(K|R|Rot|T)_.+",
        lenses=True,
        written=CalibrationFormat.OPENCV,
        suffix=".yml",
    ),
    RigFormat("nerfstudio", "nerfstudio", ("transforms.json", "transforms_train.json"), keys="frames"),
    RigFormat("LLFF", "llff", ("poses_bounds*.npy",), keys=r"\[\]"),
    RigFormat("multical", "json_rigs", keys="camera_poses|cameras/.+/model", reader="read_multical", lenses=True),
    RigFormat("3D Gaussian Splatting", "json_rigs", keys="#/img_name", reader="read_trainer"),
    RigFormat("Qualisys", "qualisys", ("*.qca.txt", "*.qca"), keys="<calibration>"),
    RigFormat(
        "Caliscope",
        "toml_rig",
        ("camera_array.toml",),
        keys=r"cameras/[^/#]+/(matrix|rotation)|[^/#]+/rotation_count",
        lenses=True,
        written=CalibrationFormat.CALISCOPE,
        writer="write_caliscope",
        suffix=".toml",
    ),
    RigFormat(
        "Pose2Sim/Anipose TOML",
        "toml_rig",
        ("*.toml",),
        keys="[^/#]+/matrix",
        lenses=True,
        written=CalibrationFormat.ANIPOSE,
        suffix=".toml",
    ),
    RigFormat(
        "cameras.json",
        "cameras_json",
        ("cameras.json",),
        keys="(views|cameras)/.+/world_to_camera",
        written=CalibrationFormat.PAGE4D,
        suffix=".json",
    ),
    RigFormat(
        "tables of cameras",
        "yaml_rigs",
        ("calibration*.json", "setting[0-9]*.json", "models.json", "*calib*.csv"),
        keys=rf"(cameras/)?[^/]+/({_LENS}|intrinsics?/(#|{_LENS}))|cameras/[^/]+/intrinsics?|intrinsics?/[^/]+/(#|{_LENS})",
        reader="read_tables",
        lenses=True,
    ),
    RigFormat("Metashape", "metashape", ("cameras.xml",), keys="<document>"),
    RigFormat(
        "Vicon",
        "",
        ("*.xcp",),
        keys="<Cameras>",
        advice="convert it to TOML with Pose2Sim (calibration type 'convert', from 'vicon')",
    ),
)
"""Formats in the order in which they are tried."""

SUPPORTED_FORMATS = "supported: " + ", ".join(dict.fromkeys(row.name for row in FORMATS if not row.advice))
"""Hint for a file that is not a calibration."""
