"""Options of the commands: made from settings records and annotations, read from a configuration file, and errors."""

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer
from pydantic import TypeAdapter, ValidationError

from page4d.choices import CalibrationFormat
from page4d.errors import InputError, UsageError, counted, did_you_mean, shortened
from page4d.io import documents
from page4d.options import OUTPUT, Option, SceneOptions, annotations_of, in_options, parse_count

if TYPE_CHECKING:
    from page4d.networks.config import NetworkConfig

ParserError: type[Exception] = typer.BadParameter.__mro__[2]
"""ClickException, the base class of the parser's errors: of click, or of the copy in newer versions of typer."""

_LIMIT = 160

_PATH = re.compile(r"[^:]*(/[^:]*|\.[A-Za-z]\w*)")
"""Text with a separator or the suffix of a file; that with a colon is a board or a file of the hub."""

GENERAL = "General"
ALL = "page4d.help_all"
"""Key of `typer.Context.meta` under which `--help-all` asks for the options of experts."""

_MAX_METAVAR = 32
"""Longest list of names in front of a help text."""

Folder = Annotated[Path, typer.Argument(metavar="SCENE", help="Folder of synchronized videos or image folders.")]
Run = typer.Argument(metavar="OUT", help="Output folder of a reconstruction.")
Json = Annotated[bool, Option("Print the result as JSON on stdout.", GENERAL, name="json")]
Quiet = Annotated[bool, Option("Print only warnings and errors.", GENERAL, also="-q")]
Verbose = Annotated[bool, Option("Add notices and tables.", GENERAL, also="-v")]


@dataclass(frozen=True)
class Without:
    """Fields of a record that a command does not take, in the annotation of its parameter."""

    fields: Collection[str]


_OF_RESULTS = ("masks", "mask_meaning", "depth", "depth_levels")

Unregistered = Annotated[SceneOptions, Without(_OF_RESULTS)]
"""Options of a scene some of whose cameras are sought."""

Uncalibrated = Annotated[
    SceneOptions, Without(("calibration", "calibration_unit", "calibration_match", "again", *_OF_RESULTS))
]
"""Options of a scene whose calibration is sought."""

CalibrationOut = Annotated[
    Path,
    Option(
        "Calibration to write: .json (page4d), .toml (Anipose, Pose2Sim; camera_array.toml: Caliscope), "
        ".yml (OpenCV), or a folder (COLMAP model).",
        metavar="FILE",
        also="-o",
    ),
]
FileFormat = Annotated[CalibrationFormat | None, Option("Format. Default: by the name.", OUTPUT, name="format")]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make Typer's signature of a command: an option per parameter with an `Option`, and per field of a record.

    A parameter whose type is a settings record is built from the options given; the record has the defaults. Such a
    command also takes `--config`, unless it has another option of that name. Parameters that Typer's own annotations
    describe are left as they are.
    """
    hints = get_type_hints(function, include_extras=True)
    made: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        made += _parameters(name, hints[name], parameter.default)
    records = {name: kind for name in hints if is_dataclass(kind := _plain(hints[name]))}
    if records and "config" not in hints:
        made.append(
            _eager("config", Path, _read_config, "Read options from a file; the command line wins.", "FILE.toml")
        )
    options = {parameter.name: parameter.annotation.__metadata__[0] for parameter in made}
    own = {name: option for name, option in options.items() if isinstance(option, Option)}
    experts = {name for name, option in own.items() if option.expert}
    if experts:
        number = counted(len(experts), "option")
        made.append(_eager("help_all", bool, _print_all, f"Show the {number} for experts too, and exit."))

    @wraps(function)
    def run(**values: Any) -> None:
        given = {name: value for name, value in values.items() if value is not None and value != []}
        for name in given:
            if isinstance(given[name], bool) and options[name].name.startswith("no-"):
                given[name] = not given[name]
        built = {name: _record(record, name, given) for name, record in records.items()}
        function(**built, **{name: given[name] for name in hints if name in given})

    run.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in made}
    run.experts = experts  # type: ignore[attr-defined]
    run.lists = {name for name, option in own.items() if option.is_list}  # type: ignore[attr-defined]
    return run


def _plain(annotation: Any) -> Any:
    """Return the type in an annotation, without metadata and without None."""
    while (kind := get_args(annotation)) and (get_origin(annotation) is Annotated or NoneType in kind):
        rest = kind[:1] if get_origin(annotation) is Annotated else [one for one in kind if one is not NoneType]
        if len(rest) > 1:
            break
        annotation = rest[0]
    return annotation


def _record(record: Any, place: str, given: Mapping[str, Any]) -> Any:
    values = {}
    for field, annotation in get_type_hints(record).items():
        name = f"{place}__{field}"
        if is_dataclass(annotation):
            values[field] = _record(annotation, name, given)
        elif name in given:
            values[field] = given[name]
    return record(**values)


def _parameters(name: str, annotation: Any, default: Any) -> Iterator[inspect.Parameter]:
    """Yield the parameters for Typer that stand for one of a command."""
    metadata = getattr(annotation, "__metadata__", ())
    if is_dataclass(record := _plain(annotation)):
        left_out = {field for one in metadata if isinstance(one, Without) for field in one.fields}
        annotations = annotations_of(record)
        for field in fields(record):
            if field.name not in left_out:
                yield from _parameters(f"{name}__{field.name}", annotations[field.name], field.default)
        return
    option = next((one for one in metadata if isinstance(one, Option)), None)
    if option is not None:
        annotation = Annotated[_typer_type(annotation), option, _typer_option(name, option, annotation, default)]
        default = default if default is inspect.Parameter.empty else None
    yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _typer_type(annotation: Any) -> Any:
    """Return the type that Typer converts to: text, which the field's type parses, unless the shell completes it."""
    kind = _plain(annotation)
    of_parts = get_args(kind)
    if get_origin(kind) is list or (get_origin(kind) is tuple and _is_completed(of_parts[0])):
        return list[of_parts[0]] | None  # type: ignore[valid-type]
    return (kind if _is_completed(kind) else str) | None


def _is_completed(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, bool | Enum | Path)


def _typer_option(name: str, option: Option, annotation: Any, default: Any) -> Any:
    """Return Typer's description of an option. Defaults are text of the help: None stands for an option not given."""
    kind = _plain(annotation)
    kind = get_args(kind)[0] if get_origin(kind) is tuple else kind
    flag = "--" + (option.name or name.rpartition("__")[2].strip("_").replace("_", "-"))
    text, metavar = in_options(option.help), option.metavar or {int: "N", float: "X"}.get(kind)
    if metavar is None and issubclass(kind, Enum):
        metavar = "|".join(kind)
        if len(metavar) > _MAX_METAVAR:
            text, metavar = f"{text} One of {', '.join(kind)}.", "NAME"
    if default is True and not option.name.startswith("no-"):
        flag += f"/--no-{flag[2:]}"
        text += " [default: on]"
    elif default is None and option.metavar.startswith("auto|"):
        text += " [default: auto]"
    elif not isinstance(default, bool | tuple | NoneType | type) and default != "":
        text += f" [default: {default:g}]" if isinstance(default, float) else f" [default: {default}]"
    return typer.Option(
        flag,
        *filter(None, [option.also]),
        help=text,
        metavar=metavar,
        rich_help_panel=option.panel,
        parser=_parser_of(annotation) if _typer_type(annotation) == str | None else None,
    )


def _parser_of(annotation: Any) -> Callable[[str], Any]:
    """Return a function that parses text as a value of a type, with Typer's errors."""

    def parse(text: str) -> Any:
        try:
            return TypeAdapter(annotation).validate_python(text)
        except ValidationError as error:
            raise typer.BadParameter(error.errors(include_url=False)[0]["msg"]) from error

    return parse


def _eager(
    name: str, kind: type, callback: Callable[..., Any], help_text: str, metavar: str = ""
) -> inspect.Parameter:
    """Return the parameter of an option that acts before the others are read."""
    option = typer.Option(
        "--" + name.replace("_", "-"),
        help=help_text,
        metavar=metavar or None,
        rich_help_panel=GENERAL,
        is_eager=True,
        callback=callback,
    )
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _print_all(context: typer.Context, wanted: bool | None) -> None:
    if wanted and not context.resilient_parsing:
        context.meta[ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


def _read_config(context: typer.Context, path: Path | None) -> None:
    """Take the options of a TOML file as defaults of those of the command line."""
    if path is None or context.resilient_parsing:
        return
    try:
        content = documents.parse_toml(
            read_text(path, "give a TOML file with one option per line, such as size = 518")
        )
    except documents.DocumentError as error:
        raise UsageError(f"'{path}' is not TOML: {error}", "write one option per line, such as size = 518") from error
    known = {name[2:]: one for one in context.command.params for name in one.opts if name.startswith("--")}
    types = context.command.callback.__annotations__
    for name in ("config", "help-all"):
        known.pop(name, None)
    for key, value in content.items():
        name = key.replace("_", "-")
        if name not in known:
            hint = did_you_mean(name, known, f"'{context.command_path} --help' lists the options")
            raise UsageError(f"'{path}' has an unknown option '{shortened(key)}'", hint)
        if known[name].name in (context.default_map or {}):
            raise UsageError(f"'{path}' has the option '{key}' twice", "remove one of the lines")
        try:
            is_path = _plain(types[known[name].name]) is Path
            given = _config_value(value, known[name], path.parent, is_path=is_path)
            known[name].process_value(context, given)
        except (ParserError, UsageError, ValueError) as error:
            text = getattr(error, "marked_message", getattr(error, "message", str(error)))
            message = with_value(text, error.__cause__)
            hint = getattr(error, "marked_hint", "") or f"'{context.command_path} --help' lists the values"
            raise UsageError(f"'{path}': {key}: {message}", _similar_value(message, hint)) from error
        context.default_map = {**(context.default_map or {}), known[name].name: given}


def _config_value(value: object, parameter: Any, folder: Path, *, is_path: bool) -> object:
    """Return a value of a configuration file as the command line has it; paths are relative to the file's folder."""
    if isinstance(value, bool) != parameter.is_flag:
        raise ValueError("true or false is expected" if parameter.is_flag else "true and false are not values of it")
    if isinstance(value, bool):
        return value
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(one, str | int | float) for one in values):
        raise ValueError("text, a number or a list of them is expected")
    texts = [str(one) for one in values]
    if not (texts and all(text.strip() for text in texts)):  # a path would be the folder
        raise ValueError("the value is empty")
    # Other types have names too: text without the form of a path is one, whatever the working folder holds.
    has_files = "FILE" in (parameter.metavar or "").split("|")
    texts = [
        str(folder / text)
        if is_path or (has_files and (_PATH.fullmatch(text) or (folder / text).is_file()))
        else text
        for text in texts
    ]
    return texts if parameter.multiple else ",".join(texts)


def described(error: Exception, arguments: Sequence[str], commands: Collection[str]) -> UsageError:
    """Return an error of the parser with the values at fault, and with the most similar names in the hint."""
    message = with_value(" ".join(error.format_message().split()), error.__cause__)  # type: ignore[attr-defined]
    message, similar = _split(message)
    command = next((argument for argument in arguments if argument in commands), "")
    listed_by = f"'page4d {command} --help' lists the options" if command else "'page4d --help' lists the commands"
    hint = f"did you mean {similar}? {listed_by}" if similar else _similar_value(message, listed_by)
    return UsageError(shortened(message.rstrip("."), _LIMIT), hint)


def _similar_value(message: str, hint: str) -> str:
    """Put the most similar value in front of a hint on a value that is not one of several."""
    found = re.search(r"'([^']*)' is not one of (.*)", message)
    return did_you_mean(found[1], re.findall(r"[\w-]+", found[2]), hint) if found else hint


def _split(message: str) -> tuple[str, str]:
    """Split off the names that resemble a misspelt one."""
    found = re.fullmatch(r"(.*?)\.? (?:\(Possible options: (.*)\)|Did you mean (.*)\?)", message)
    return (found[1], (found[2] or found[3]).replace("'", "")) if found else (message, "")


def with_value(message: str, cause: BaseException | None) -> str:
    """Put the refused value into a message of pydantic, by which typer checks values."""
    details = cause.errors() if cause is not None and hasattr(cause, "errors") else []
    value = shortened(str(details[0].get("input"))) if details else ""
    message = re.sub(r", unable to parse .*", "", message.replace("Value error, ", ""))
    return message.replace("Input should", f"'{value}' should") if value else message


def parse_size(text: str, *, square: bool = False, max_side: int = 10**9) -> tuple[int, int]:
    """Parse `WxH` into (height, width); with `square` also the long side `N` of NxN."""
    width, cross, height = text.strip().partition("x")
    sides = (width, width) if square and not cross else (height, width)
    rows, columns = map(parse_count, sides)
    if not (rows and columns and max(rows, columns) <= max_side):
        form = "WxH or N" if square else "WxH"
        limit = f" with sides of 1 to {max_side} px" if max_side < 10**9 else ""
        raise typer.BadParameter(f"'{shortened(text)}' is not of the form {form}{limit}", param_hint="'--size'")
    return rows, columns


def read_text(path: Path, hint: str) -> str:
    """Read a text file.

    Raises:
        InputError: if it cannot be read, with the given hint.
    """
    try:
        return documents.read_text(path)
    except documents.DocumentError as error:
        raise InputError(f"'{path}' cannot be read: {error}", hint) from error


def read_network(path: Path, hint: str) -> "NetworkConfig":
    """Read a network as JSON.

    Raises:
        InputError: if the file cannot be read, with the given hint.
        UsageError: if it holds no network, with the given hint.
    """
    from page4d.networks.config import NetworkConfig

    text = read_text(path, hint)
    try:
        return NetworkConfig.from_json(text)
    except UsageError as error:
        raise UsageError(f"'{path}': {error.marked_message}", hint) from error
