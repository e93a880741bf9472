"""Enumerations of everything that a user chooses by name, without heavy imports; defaults are in `options`."""

from enum import StrEnum


class MaskMeaning(StrEnum):
    """Meaning of a mask pixel above half of the maximum value."""

    DYNAMIC = "dynamic"
    """It moves."""

    IGNORE = "ignore"
    """It is left out."""

    KEEP = "keep"
    """Everything else is left out."""


class SyncMode(StrEnum):
    """Source of the clocks of the views; any other value of `sync` is a file."""

    AUTO = "auto"
    NONE = "none"
    AUDIO = "audio"
    TIMECODE = "timecode"
    PEOPLE = "people"
    MOTION = "motion"


MEASURED_CLOCKS = (SyncMode.PEOPLE, SyncMode.MOTION)
"""Modes that estimate the clocks from pixels, before the scene is opened with them."""


class CalibrationMatch(StrEnum):
    """Assignment of calibrated cameras to views."""

    NAME = "name"
    ORDER = "order"


class CalibrationResize(StrEnum):
    """Relation of a video to the calibrated image, if their sizes differ."""

    CROP_CENTER = "crop-center"
    PAD_CENTER = "pad-center"
    SCALE = "scale"


class LengthUnit(StrEnum):
    """Unit of length of a calibration file."""

    METRE = "m"
    CENTIMETRE = "cm"
    MILLIMETRE = "mm"


class Preprocess(StrEnum):
    """Resizing, cropping and padding of input images."""

    NATIVE = "native"
    """Requested long side; aspect ratio kept, no cropping."""

    VGGT_CROP = "vggt-crop"
    """518 px wide, cropped to at most 518 px in height."""

    VGGT_PAD = "vggt-pad"
    """Long side 518 px, padded to a white square."""

    PI3 = "pi3"
    """At most 255,000 px with the aspect ratio of the first view; other aspect ratios are stretched."""

    DA3 = "da3"
    """Long side 504 px, the other side stretched to whole patches; cropped to the smallest view."""

    VGGT_OMEGA = "vggt-omega"
    """About 512 x 512 px in number of pixels, stretched to whole patches; cropped to an aspect ratio of at most 2."""


class Poses(StrEnum):
    """Cameras of the result where a calibration is given."""

    INPUT = "input"
    """The calibrated ones; the network is conditioned on them if it can be."""

    PREDICTED = "predicted"
    """The network's, aligned to the calibration's world."""


class CameraMotion(StrEnum):
    """Whether each view has one camera for the whole capture."""

    STATIC = "static"
    MOVING = "moving"
    AUTO = "auto"
    """Per view, from its frames; from the predicted cameras of the first chunk where frames do not determine it."""


class WorldFrame(StrEnum):
    """World of the cameras of a result."""

    AUTO = "auto"
    """That of a calibration; of registered cameras the upright one if people show it, else that of the first."""

    UPRIGHT = "upright"
    """An axis points up, and the origin is on the floor below the cameras."""

    CALIBRATION = "calibration"
    FIRST_CAMERA = "first-camera"
    """The frame of the first camera at the first instant."""


class LensModel(StrEnum):
    """Model of the radial distortion of a lens."""

    BROWN_CONRADY = "brown-conrady"
    FISHEYE = "fisheye"


class CalibrationFormat(StrEnum):
    """Format of a calibration that page4d writes."""

    PAGE4D = "page4d"
    """`cameras.json`."""

    COLMAP = "colmap"
    """A folder with a COLMAP model, one image per view."""

    ANIPOSE = "anipose"
    """TOML of Anipose, which Pose2Sim reads too."""

    CALISCOPE = "caliscope"
    """`camera_array.toml` of Caliscope."""

    OPENCV = "opencv"
    """OpenCV YAML of EasyMocap and EasyVolcap, lenses and poses in one file."""


class Registration(StrEnum):
    """Evidence from which cameras without calibration are determined before the network runs."""

    AUTO = "auto"
    """People, if the pose model was fetched, and texture; the network's cameras where both fail.

    Without people, texture is used only with known focal lengths.
    """

    PEOPLE = "people"
    """Body keypoints."""

    TEXTURE = "texture"
    """Local features, such as corners; unknown focal lengths are estimated from it."""

    NETWORK = "network"
    """The network's cameras."""


class Precision(StrEnum):
    """Floating-point precision of encoder and trunk; heads, cameras and geometry stay in float32."""

    AUTO = "auto"
    """bf16 on a GPU that supports it, else fp32."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class ExistingOutput(StrEnum):
    """Policy for an output folder that already holds a result."""

    REFUSE = "refuse"
    OVERWRITE = "overwrite"
    RESUME = "resume"


class DepthSize(StrEnum):
    """Resolution of depth maps and clouds; a number is their long side in pixels."""

    AUTO = "auto"
    """512 px, or that of the videos, for rigs with known cameras; else that of the network."""

    NETWORK = "network"
    """That of the network's images."""

    VIDEO = "video"
    """That of the videos."""


class SceneFamily(StrEnum):
    """Arrangement of the cameras of a synthetic scene."""

    ARC = "arc"
    """Inward-facing cameras on an arc, 5 to 45 degrees between neighbours."""

    RING = "ring"
    """Cameras around people, 45 to 110 degrees between neighbours, 2 to 6 m away, 0.5 to 3 m high."""

    STAGE = "stage"
    """Cameras around a table or people in a hall, 25 to 120 degrees between neighbours, each at its own elevation."""

    HANDHELD = "handheld"
    """Closely spaced cameras that always move."""

    SINGLE = "single"
    """A single camera."""


class Subject(StrEnum):
    """Content of the capture volume of a synthetic scene."""

    PEOPLE = "people"
    """One to three people."""

    TABLE = "table"
    """Small objects on a table, filmed from 0.6 to 1.4 m."""


class DepthAlignment(StrEnum):
    """Alignment of predicted to true depth before errors are computed."""

    SCALE = "scale"
    SCALE_SHIFT = "scale-shift"
    SCALE_SHIFT_SQUARES = "scale-shift-squares"
    SCALE_SHIFT_ADAM = "scale-shift-adam"
    METRIC = "metric"
    MEDIAN = "median"


class Target(StrEnum):
    """Network that a conversion fills."""

    OWN = "own"
    """The published network, with attention within each image and across all images."""

    PAGE4D_MV = "page4d-mv"
    """The view x time network, with attention along the time of each view and across the views of each instant."""


class PretrainMethod(StrEnum):
    """Self-supervised method of pretraining."""

    MAE = "mae"
    """Masked autoencoder."""

    DINO = "dino"
    """Self-distillation."""


class SparseStrategy(StrEnum):
    """Keys of sparse global attention."""

    LANDMARK = "landmark"
    """Special tokens and some patches of every image, spread over its area."""

    DILATED = "dilated"
    """All tokens of the images at certain offsets in time and view."""

    MEMORY = "memory"
    """Learned tokens that first attend to everything; they are passed on to the next chunk."""


class TimeEncoding(StrEnum):
    """Encoding of the distance in time in attention across time."""

    NONE = "none"
    ALIBI = "alibi"
    """A bias on the logits that falls with the distance in time."""

    ROPE = "rope"
    """Rotary embedding of the time."""


class FullAttention(StrEnum):
    """When all images attend to each other as if they were views of one instant."""

    NEVER = "never"
    ONE_VIEW = "one-view"
    """For captures of a single view."""

    ALWAYS = "always"


class PointLayer(StrEnum):
    """Points of a cloud that are exported or shown."""

    ALL = "all"
    STATIC = "static"
    MOVING = "moving"


class ImageFormat(StrEnum):
    """File format of exported pictures."""

    PNG = "png"
    JPG = "jpg"


class Pinhole(StrEnum):
    """Intrinsics of exported pictures, which are warped to them exactly."""

    KEEP = "keep"
    """Those of the run."""

    CENTERED = "centered"
    """The principal point is the middle of the picture, which is cropped for it."""

    COMMON = "common"
    """One focal length, for both axes, and one size for all views, with the principal point in the middle."""


class UpAxis(StrEnum):
    """Axis of the world that points up."""

    AUTO = "auto"
    """In a new upright world z; in that of a run, the one of its `cameras.json`, else the vertical of level cameras,
    or an axis of the calibration near it. Where it is not determined: -y in the world of the first camera, in a
    calibrated one the axis nearest to the cameras' mean upward axis."""

    X = "x"
    Y = "y"
    Z = "z"
    MINUS_X = "-x"
    MINUS_Y = "-y"
    MINUS_Z = "-z"

    @property
    def vector(self) -> tuple[float, float, float]:
        """The unit vector of an axis."""
        length = -1.0 if self.value.startswith("-") else 1.0
        x, y, z = (length if self.value.endswith(name) else 0.0 for name in "xyz")
        return x, y, z


class Sample(StrEnum):
    """Capture that is installed with page4d."""

    GYM = "gym"
    """Four cameras around a man on a treadmill, with their calibration."""

    OFFICE = "office"
    """Four webcams in an office, with their calibration and time stamps."""

    ROOM = "room"
    """A synthetic room with exact ground truth."""
