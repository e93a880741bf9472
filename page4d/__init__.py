"""page4d: synchronized videos in, a 4D reconstruction out.

The names below are imported on first use, so that `import page4d` costs nothing.
"""

__version__ = "0.1.0"

_EXPORTS = {
    "open_scene": "page4d.scene.open",
    "SceneOptions": "page4d.scene.open",
    "open_output": "page4d.export.output",
    "reconstruct": "page4d.inference.reconstruct",
    "ReconstructSettings": "page4d.inference.settings",
    "load": "page4d.weights.loading",
    "load_network": "page4d.weights.loading",
    "evaluate": "page4d.evaluation.evaluate",
    "Page4DError": "page4d.errors",
}

__all__ = [*_EXPORTS, "__version__"]


def __getattr__(name: str) -> object:
    """Import a public name from the module that defines it."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'page4d' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_EXPORTS[name]), name)
