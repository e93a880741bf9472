"""`page4d.export`: an output folder, or its open `Output`, to a folder in the format of another tool.

`export.json` states what an export contains, and how it relates to the run.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from pydantic import JsonValue

import page4d
from page4d.errors import Progress, UsageError, counted, listed
from page4d.exporters.formats import Format, PictureUse, find_format
from page4d.exporters.job import ExportJob, Written
from page4d.exporters.plan import check_options, plan_job
from page4d.formats.ply import offset_text
from page4d.installation import require_extra
from page4d.io.atomic import file_sha256, leftovers, real_path
from page4d.io.exhaustion import limits_named
from page4d.io.folders import check_replaceable, given_path, staged_folder, write_json
from page4d.io.json_records import FileModel, read_model
from page4d.keywords import ExportKeywords
from page4d.options import ExportSettings, in_options, split_options
from page4d.output.pictures import Pictures, open_pictures
from page4d.output.reader import Output, check_not_replaced, open_output

RECORD_NAME = "export.json"


class ExportedView(FileModel):
    """A view: its name in the run, the label of its files, picture size [width, height], and shares of its pictures.

    `cropped` is the share of the original picture that was cut off, `empty` that of the exported one without data.
    """

    name: str
    label: str
    picture_size: tuple[int, int] | None
    cropped: float = 0.0
    empty: float = 0.0
    static: bool


class ExportedInstant(FileModel):
    """An instant: its index in the run, seconds on the common clock, and its time as readers of the format see it."""

    instant: int
    seconds: float
    time: float | int | str | None = None


class ExportRecord(FileModel):
    """The whole of `export.json`.

    `world_from_run` is the 4x4 similarity from the run's world to the exported one, which is about the `world_offset`
    of the run. `run_sha256` is that of the run's `run.json`, `cut_points` the number of points that were dropped as
    far outside the scene.
    """

    page4d: str
    format: str
    options: dict[str, JsonValue]
    scene: str
    run_sha256: str
    unit: str
    scale: float
    up: str
    up_found: str
    exported_up: str
    world_from_run: list[list[float]]
    world_offset: tuple[float, float, float] | None = None
    regular: bool
    frame_rate: float
    pinhole: str | None
    views: list[ExportedView]
    instants: list[ExportedInstant]
    held_out: list[str]
    points: int
    cut_points: int
    remarks: list[str]
    files: int
    bytes: int


MEMORY_HINT = "export fewer points (⟨max_points⟩), smaller pictures (⟨image_size⟩), or one format at a time"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A finished export: its folder, the content of its `export.json`, and what to do with it."""

    folder: Path
    record: ExportRecord
    next_step: str

    def __repr__(self) -> str:
        """Return folder, format and size in one line."""
        return f"<Exported '{self.folder}': {self.record.format}, {counted(self.record.files, 'file')}>"


@limits_named(MEMORY_HINT)
def export(
    output: Output | Path | str,
    formats: str | Sequence[str],
    folder: Path | str,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Unpack[ExportKeywords],
) -> list[Exported]:
    """Export a run to one or several formats: those of `page4d export --list`, described in docs/exports.md.

    Args:
        output: an output folder, or `open_output` of it.
        formats: names of formats, as a list or separated by commas.
        folder: new folder; with several formats each gets a subfolder by its name.
        overwrite: replace a former export.
        progress: is called with the work done and the total of a format.
        **options: fields of `ExportSettings` by name, such as `scene`, `views` and `max_points`; None is what the
            format needs. A format refuses options that it has no use for.

    Returns:
        One `Exported` per format: its folder, the content of its `export.json`, and how to use it.

    Raises:
        UsageError: if a format or an option is unknown, or an option does not fit, or the folder is not empty.
        InputError: if the scene is not that of the run, or the run does not suit the format.
        OutputError: if the folder cannot be written.
        CapabilityError: if a format needs a package that is not installed.
    """
    jobs = plan_exports(output, formats, folder, overwrite=overwrite, **options)
    return [run_export(job, target, progress, overwrite=overwrite) for job, target in jobs]


def plan_exports(
    output: Output | Path | str, formats: str | Sequence[str], folder: Path | str, *, overwrite: bool, **options: Any
) -> list[tuple[ExportJob, Path]]:
    """Check everything that can be checked before anything is written, and return the exports with their folders."""
    folder = given_path(folder, "folder")
    chosen = [find_format(name) for name in _names(formats)]
    settings = ExportSettings(**split_options(options, "export", ExportSettings)[0])
    check_options(chosen, settings)
    output = open_output(output)
    targets = [folder if len(chosen) == 1 else folder / format.name for format in chosen]
    for format, target in zip(chosen, targets, strict=True):
        check_target(output, settings.scene, target, overwrite=overwrite)
        if format.extra:
            require_extra(format.extra, format.name)
    pictures = _pictures(output, settings, chosen)
    jobs = [plan_job(output, format, settings, pictures) for format in chosen]
    for job in jobs:
        if hasattr(job.format.code, "check"):
            job.format.code.check(job)
    return list(zip(jobs, targets, strict=True))


def _names(formats: str | Sequence[str]) -> list[str]:
    names = formats.split(",") if isinstance(formats, str) else list(formats)
    names = list(dict.fromkeys(name.strip() for name in names))
    if not all(names) or not names:
        raise UsageError("the name of a format is empty", "list the formats with 'page4d export --list'")
    return names


def check_target(output: Output, scene: Path | None, target: Path, *, overwrite: bool) -> None:
    """Refuse a folder that cannot be written, holds other files, or overlaps with the run or its scene.

    Raises:
        UsageError: if something would be lost or mixed.
        OutputError: if it cannot be created.
    """
    path, run = real_path(target), real_path(output.layout.folder)
    if path.is_relative_to(run) or run.is_relative_to(path):
        raise UsageError(f"'{target}' and the run '{output.layout.folder}' overlap", "use a folder outside the run")
    if scene is not None:
        source = real_path(scene)
        if path.is_relative_to(source) or source.is_relative_to(path):
            raise UsageError(f"'{target}' and the scene '{scene}' overlap", "use a folder outside the scene")
    if target.is_dir() and target.samefile(Path()):  # it is replaced: its users would be in a deleted folder
        raise UsageError(f"'{target}' is the working folder", "give a new folder in it, such as ⟨folder=export⟩")
    check_replaceable(target, RECORD_NAME, overwrite=overwrite)
    _check_nothing_added(target)
    for folder in path.parents:
        if (folder / "run.json").is_file() and (folder / "cameras.json").is_file():
            raise UsageError(f"'{target}' is in the output folder of a run, '{folder}'", "use another folder")


def _check_nothing_added(target: Path) -> None:
    """Refuse to replace an export to which files were added, such as a database or the results of a training."""
    if not (target / RECORD_NAME).is_file():
        return
    written = read_model(target / RECORD_NAME, ExportRecord).files + 1
    found = sum(not path.is_dir() or path.is_symlink() for path in target.rglob("*"))
    if found > written:
        added = counted(found - written, "file")
        raise UsageError(
            f"'{target}' holds {added} that the export did not write", "move them, or use another folder"
        )


def _pictures(output: Output, settings: ExportSettings, chosen: Sequence[Format]) -> Pictures | None:
    """Open the scene if a format uses its pictures."""
    needing = [format.name for format in chosen if format.pictures is PictureUse.NEEDED]
    optional = [format.name for format in chosen if format.pictures is PictureUse.OPTIONAL and settings.images]
    if settings.scene is None or all(format.pictures is PictureUse.NONE for format in chosen):
        if names := needing or optional:
            files = listed([view.file for view in output.run.views], 3)
            hint = f"give ⟨scene=FOLDER⟩ with {files}" + ("" if needing else ", or ⟨images=False⟩")
            raise UsageError(f"{names[0]} needs the pictures", hint)
        return None
    return open_pictures(output, settings.scene)


def run_export(
    job: ExportJob, folder: Path, progress: Progress | None = None, *, overwrite: bool = False
) -> Exported:
    """Write an export into a temporary folder that becomes `folder` at the end.

    Raises:
        InputError: if a frame or a file of the run cannot be read.
        OutputError: if a file cannot be written.
    """
    # A step per picture, and per instant.
    done, total = 0, job.num_times * (1 if job.pictures is None else 1 + len(job.views))

    def advance() -> None:
        """Report one more step; writers may take fewer or more than are planned."""
        nonlocal done
        done += 1
        if progress is not None and done <= total:
            progress(done, total)

    job = replace(job, advance=advance)
    with staged_folder(folder, replace=overwrite) as staged:
        written = job.format.code.write(job, staged)
        check_not_replaced(job.output)
        files = [path for path in staged.rglob("*") if path.is_file()]
        record = export_record(job, written, len(files), sum(path.stat().st_size for path in files))
        write_json(staged / RECORD_NAME, record.model_dump(mode="json"))
    if left := [path.name for path in leftovers(real_path(folder))]:
        remark = f"next to it, killed exports left {listed(left, 3)}: delete them, unless another export is running"
        record = record.model_copy(update={"remarks": [*record.remarks, remark]})
    if progress is not None and done < total:
        progress(total, total)
    return Exported(folder=folder, record=record, next_step=in_options(job.format.code.next_step(job, folder)))


def export_record(job: ExportJob, written: Written, num_files: int, num_bytes: int) -> ExportRecord:
    """Return the content of `export.json`; files and bytes are those of all other files."""
    run = job.output.run
    times = written.times or (None,) * job.num_times
    labels = written.labels or tuple(view.label for view in job.views)
    has_pictures = job.pictures is not None
    options = json.loads(json.dumps(asdict(job.settings), default=str))
    del options["scene"]  # a path of this machine
    remarks = list(written.remarks)
    if job.settings.scene is not None and job.format.pictures is PictureUse.NONE:
        remarks.append(f"{job.format.name} has no pictures: those of ⟨scene⟩ are not written")
    if run.world_offset is not None:
        remarks.append(f"coordinates are about the offset {offset_text(run.world_offset)} of the run's world")
    if job.num_times > 1 and not job.is_regular:
        remarks.append("the steps between instants differ; readers that assume a frame rate play them evenly")
    return ExportRecord(
        page4d=page4d.__version__,
        format=job.format.name,
        options=options,
        scene=run.scene.name,
        run_sha256=file_sha256(job.output.layout.run),
        unit=run.unit,
        scale=job.world.scale,
        up=job.world.up.value,
        up_found=in_options(job.up_found),
        exported_up=job.world.exported_up.value,
        world_from_run=job.world.matrix(run.world_offset).tolist(),
        world_offset=run.world_offset,
        regular=job.is_regular,
        frame_rate=job.frame_rate,
        pinhole=(job.settings.pinhole or job.format.pinhole).value if has_pictures else None,
        views=[
            ExportedView(
                name=view.name,
                label=labels[number],
                picture_size=(geometry.size[1], geometry.size[0]) if has_pictures else None,
                cropped=round(geometry.cropped, 4) if has_pictures else 0.0,
                empty=round(geometry.empty, 4) if has_pictures else 0.0,
                static=job.is_static(number),
            )
            for number, (view, geometry) in enumerate(zip(job.views, job.geometry, strict=True))
        ],
        instants=[
            ExportedInstant(instant=instant, seconds=float(seconds), time=time)
            for instant, seconds, time in zip(job.instants, job.seconds, times, strict=True)
        ],
        held_out=list(written.held_out),
        points=written.num_points,
        cut_points=job.clouds.num_cut if job.clouds is not None else 0,
        remarks=list(map(in_options, remarks)),
        files=num_files,
        bytes=num_bytes,
    )
