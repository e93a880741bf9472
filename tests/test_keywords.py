"""The keyword arguments of functions are the fields of their settings: `page4d/keywords.py` is written from these."""

import inspect
import os
from dataclasses import fields
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from pydantic import BeforeValidator

import page4d
from page4d.options import (
    CalibrateSettings,
    EvaluationSettings,
    ExportSettings,
    NetworkOptions,
    ReconstructSettings,
    RegisterSettings,
    SceneOptions,
    text_form,
)

MODULE = Path(page4d.__file__).parent / "keywords.py"

GROUPS = {
    "SceneKeywords": ("TypedDict", (SceneOptions,), "Options of `open_scene`."),
    "RigKeywords": ("SceneKeywords", RegisterSettings.__bases__, "Options of the scene and of the cameras of a rig."),
    "ReconstructKeywords": ("RigKeywords", (NetworkOptions, ReconstructSettings), "Options of `reconstruct`."),
    "RegisterKeywords": ("RigKeywords", (RegisterSettings,), "Options of `register`."),
    "CalibrateKeywords": ("SceneKeywords", (CalibrateSettings,), "Options of `calibrate`."),
    "ExportKeywords": ("TypedDict", (ExportSettings,), "Options of `export`."),
    "EvaluateKeywords": ("TypedDict", (EvaluationSettings,), "Options of `evaluate`."),
}
"""Base class, records and docstring of every class; fields that the records inherit are those of the base class."""

FORMS = {"focal": "float", "sync": "Path", "instants": "range"}
"""Types that a validator of a field takes besides text."""

HEAD = '''"""Keyword arguments of the functions of page4d, by name and type, for editors and type checkers.

Written by `make golden` from the settings in `page4d/options.py`, which have the defaults and check the values.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from page4d import choices
from page4d.options import PointOptions
'''


PARSER = text_form(str).func.__qualname__


def types_of(annotation: Any) -> list[str]:
    """Return the types that a parameter takes for a field of this type."""
    kind = get_origin(annotation)
    if kind is Annotated:
        inner, *metadata = get_args(annotation)
        parses = any(isinstance(one, BeforeValidator) and one.func.__qualname__ == PARSER for one in metadata)
        return [*types_of(inner), *(["str"] if parses else [])]
    if kind in (Union, UnionType):
        return [name for part in get_args(annotation) for name in types_of(part)]
    if annotation is NoneType:
        return ["None"]
    if annotation is Path:
        return ["Path", "str"]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [f"choices.{annotation.__name__}", "str"]
    if kind is tuple:
        parts = get_args(annotation)
        if parts[-1] is Ellipsis:
            return [f"Sequence[{union(types_of(parts[0]))}]"]
        return [f"tuple[{', '.join(union(types_of(part)) for part in parts)}]"]
    return [str(annotation.__name__)]


def union(names: list[str]) -> str:
    return " | ".join(sorted(dict.fromkeys(names), key=lambda name: name == "None"))


def written() -> str:
    text = HEAD
    for name, (base, records, docstring) in GROUPS.items():
        inherited = {field for record in GROUPS.get(base, ("", ()))[1] for field in get_type_hints(record)}
        text += f'\n\nclass {name}({base}, total=False):\n    """{docstring}"""\n\n'
        for record in records:
            for field, annotation in get_type_hints(record, include_extras=True).items():
                names = types_of(annotation)
                line = f"    {field}: {union([*names, *([FORMS[field]] if field in FORMS else [])])}\n"
                text += line if field not in inherited else ""
    return text


def test_golden_keywords_are_those_of_the_settings() -> None:
    if os.environ.get("PAGE4D_REGENERATE"):
        MODULE.write_text(written())
    assert MODULE.read_text() == written()


@pytest.mark.parametrize(
    ("function", "records"),
    [
        (page4d.open_scene, (SceneOptions,)),
        (page4d.reconstruct, (SceneOptions, NetworkOptions, ReconstructSettings)),
        (page4d.register, (SceneOptions, RegisterSettings)),
        (page4d.calibrate, (SceneOptions, CalibrateSettings)),
        (page4d.export, (ExportSettings,)),
        (page4d.evaluate, (EvaluationSettings,)),
    ],
)
def test_functions_take_the_fields_of_their_settings_by_name(function: Any, records: tuple[type, ...]) -> None:
    (keywords,) = get_args(get_type_hints(inspect.unwrap(function))[list(inspect.signature(function).parameters)[-1]])
    names = [field.name for record in records for field in fields(record)]
    assert sorted(keywords.__annotations__) == sorted(names)


def test_forms_besides_text_are_valid() -> None:
    assert ReconstructSettings(focal=900.0).focal == "900"
    assert SceneOptions(sync=Path("sync.json")).sync == "sync.json"
    assert page4d.options.ExportSettings(instants=range(2, 8, 3)).instants == (2, 8, 3)
