"""The calibration formats as data: how their files are recognized, read and written. Imports no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from page4d.choices import CalibrationFormat


@dataclass(frozen=True)
class RigFormat:
    """A calibration format: how its files are recognized, and the functions that read and write them.

    `patterns` match lower-case file names that are probably calibrations. A document is recognized by its content: by
    a key path that `keys` matches (`page4d.formats.files.key_paths`). `reader` in `module` is a function `read(path,
    content, poses) -> Calibration` of the parsed document, which raises `InputError` if the document or a camera is
    invalid, or lacks a pose; without `poses` it reads the lenses alone. One that `needs_poses` has no such parameter.
    A file of a format that `is_single` holds one camera, and its reader also takes a list of paths and documents. A
    format without `keys` spans a folder: `is_folder(path)` recognizes it, and `read(path, views)` gets the names of
    the views, if they are known. A format with `advice`, how to convert its files, is not read. A format that is
    `written` has a `writer` `write(calibration, path)`, which raises `UsageError` for cameras that it cannot hold and
    `OutputError` if the file cannot be written, and its files end with `suffix`, "" for a folder that contains a file
    of the first name in `patterns`. Of formats with one suffix, that whose pattern a name matches first is written.
    `cannot_hold` names what its files cannot hold of a camera: "name", "fisheye lens" or "skew".
    """

    name: str
    module: str
    patterns: tuple[str, ...] = ()
    keys: str = ""
    reader: str = "read"
    needs_poses: bool = False
    is_single: bool = False
    advice: str = ""
    written: CalibrationFormat | None = None
    writer: str = "write"
    suffix: str = ""
    cannot_hold: tuple[str, ...] = ()

    def function(self, name: str) -> Callable[..., Any]:
        """Return the `reader`, the `writer`, or `is_folder` of the module."""
        function: Callable[..., Any] = getattr(import_module(f"page4d.formats.{self.module}"), name)
        return function


CAMERA_MATRIX = "(?i:cm|(?:camera|intrinsics?)?_?(?:mtx|mat|matrix))"
"""Pattern of the keys of a camera matrix, besides single letters."""

_LENS = f"[KkP]|fx|principal_point|intrinsics_0|projection(_matrix)?|{CAMERA_MATRIX}"
_COLOR = r"(?i:(colou?r|rgb)\w*)"
_FIRST = "(?i:0|1|l|left)"

FORMATS = (
    RigFormat(
        "COLMAP",
        "colmap",
        ("cameras.bin", "cameras.txt", "images.bin", "images.txt"),
        written=CalibrationFormat.COLMAP,
        cannot_hold=("skew",),
    ),
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
    ),
    RigFormat(
        "MATLAB", "matlab", keys="([^/]+/)?(RDistort|RadialDistortion)|kc", reader="read_lenses", is_single=True
    ),
    RigFormat("AliceVision", "", ("*.sfm",), "poses/#/poseId", advice="export a COLMAP scene in Meshroom"),
    RigFormat("OpenSfM", "", (), "#/shots", advice="use opensfm export_colmap"),
    RigFormat("Basalt", "", (), "value0/T_imu_cam", advice="write a JSON with K, dist, R and T of every camera"),
    RigFormat("DepthAI", "", (), "cameraData", advice="write a JSON with K, dist, R and T of every camera"),
    RigFormat("RealityCapture", "", (), r"#/#name|<.*xmpmeta>", advice="export the registration as COLMAP text"),
    RigFormat("OpenMVG", "", ("sfm_data.json",), "sfm_data_version", advice="use openMVG_main_openMVG2Colmap"),
    RigFormat(
        "Dynamic 3D Gaussians",
        "nerfstudio",
        ("train_meta.json",),
        keys="fn/#/#",
        reader="read_gaussians",
        needs_poses=True,
    ),
    RigFormat("Kalibr", "opencv_rigs", keys="[^#]+/(rostopic|T_cn_cnm1|T_cam_imu|T_imu_cam)", reader="read_kalibr"),
    RigFormat("MC-Calib", "opencv_rigs", keys=r"camera_\d+/camera_pose_matrix", reader="read_tables"),
    RigFormat(
        "OpenCV stereo",
        "opencv_rigs",
        keys=rf"[MK][01]|{CAMERA_MATRIX}_?{_FIRST}|{_FIRST}[_.]?{CAMERA_MATRIX}|{_FIRST}[_.][MK]",
        reader="read_stereo",
    ),
    RigFormat("JARVIS", "opencv_rigs", keys="intrinsicMatrix", reader="read_single_cameras", is_single=True),
    RigFormat(
        "single cameras (ROS, OpenCV)",
        "opencv_rigs",
        (
            "*calib*.npz",
            "*camera*.npz",
            "*intrinsic*.npz",
            "*stereo*.npz",
            "rot_trans_*.dat",
            "*_rot_trans.dat",
            "*_cam.txt",
        ),
        keys=f"{CAMERA_MATRIX}|distortion_model|[Kk]s?|rvec|principal_point|R|intrinsics?/#/#|projection_parameters",
        reader="read_single_cameras",
        is_single=True,
    ),
    RigFormat(
        "OpenCV YAML",
        "opencv_yaml",
        ("*.yml", "*.yaml", "intr[i_]*.json", "extr[i_]*.json", "intr[i_]*.xml", "extr[i_]*.xml"),
        keys=r"(K|R|Rot|T(?!_BS)|world_mat)_.+|.+_Rt|.+_K/(#/#|data)",
        written=CalibrationFormat.OPENCV,
        suffix=".yml",
        cannot_hold=("name", "fisheye lens", "skew"),
    ),
    RigFormat(
        "nerfstudio", "nerfstudio", ("transforms.json", "transforms_train.json"), keys="frames", needs_poses=True
    ),
    RigFormat("LLFF", "llff", ("poses_bounds*.npy",), keys=r"\[\]", needs_poses=True),
    RigFormat("multical", "opencv_rigs", keys="camera_poses|cameras/.+/model", reader="read_multical"),
    RigFormat("3D Gaussian Splatting", "nerfstudio", keys="#/img_name", reader="read_trainer", needs_poses=True),
    RigFormat("Qualisys", "qualisys", ("*.qca.txt", "*.qca"), keys="<calibration>", needs_poses=True),
    RigFormat(
        "Caliscope",
        "toml_rig",
        ("camera_array.toml",),
        keys=r"cameras/[^/#]+/(matrix|rotation)|[^/#]+/rotation_count",
        written=CalibrationFormat.CALISCOPE,
        writer="write_caliscope",
        suffix=".toml",
    ),
    RigFormat(
        "Pose2Sim/Anipose TOML",
        "toml_rig",
        ("*.toml",),
        keys="[^/#]+/matrix",
        written=CalibrationFormat.ANIPOSE,
        suffix=".toml",
    ),
    RigFormat(
        "cameras.json",
        "cameras_json",
        ("cameras.json",),
        keys="(views|cameras)/.+/world_to_camera",
        needs_poses=True,
        written=CalibrationFormat.PAGE4D,
        suffix=".json",
    ),
    RigFormat(
        "tables of cameras",
        "opencv_rigs",
        ("calibration*.json", "setting[0-9]*.json", "models.json", "*calib*.csv", "krt", "camera.calibration"),
        keys=rf"(cameras/)?[^/]+/(({_COLOR}/)?({_LENS})|intrinsics?/(#|{_LENS}))|camrot|world_?(to|2)_?cam/[^/]+|cameras/[^/]+/intrinsics?|intrinsics?/[^/]+/(#|{_LENS})",
        reader="read_tables",
    ),
    RigFormat("Metashape", "metashape", ("cameras.xml",), keys="<document>", needs_poses=True),
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
