"""Configuration records: validated by pydantic on construction and when read from JSON, with errors in two lines."""

import json
from collections.abc import Callable
from dataclasses import asdict, field
from functools import wraps
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from page4d.errors import UsageError, shortened
from page4d.io.documents import DocumentError, parse_json

Record = TypeVar("Record")

_RULES = ConfigDict(extra="forbid", allow_inf_nan=False)
_TOO_LARGE = "a number is beyond all limits"


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field, field))
def config_record(name: str) -> Callable[[type[Record]], type[Record]]:
    """Make a class a frozen, keyword-only dataclass whose fields pydantic validates.

    Types and `Field` constraints are checked and coerced (a list to a tuple, a string to its enum) on construction;
    rules across fields go into `__post_init__`. Unknown fields and numbers that are not finite are refused. A
    violation raises `UsageError`; `name` is what its message calls the record.
    """

    def decorate(cls: type[Record]) -> type[Record]:
        record: Any = dataclass(frozen=True, kw_only=True, config=_RULES)(cls)
        validate = record.__init__

        @wraps(validate)
        def initialize(self: Record, **values: Any) -> None:
            try:
                validate(self, **values)
            except ValidationError as error:
                raise _usage_error(error, name, values) from error
            except ArithmeticError as error:  # in a rule across fields
                raise UsageError(f"{name}: {_TOO_LARGE}", "give smaller numbers") from error

        record.__init__ = initialize
        checked: type[Record] = record
        return checked

    return decorate


def config_to_json(record: Any, indent: int | None = None) -> str:
    """Write a record as JSON with sorted keys, on one line unless `indent` is given."""
    return json.dumps(asdict(record), sort_keys=True, indent=indent)


def config_from_json(
    adapter: TypeAdapter[Record], text: str, name: str, hint: str, *, strict: bool = False
) -> Record:
    """Read what `config_to_json` wrote; fields that are left out take their defaults.

    `strict` forbids conversions between types, such as a string where a number belongs. Repeated keys, and numbers
    that are not finite, are errors.

    Raises:
        UsageError: if the text is not such a record, names an unknown field or holds a wrong type.
    """
    try:
        content = parse_json(text)
        return adapter.validate_json(text, strict=strict)
    except DocumentError as error:
        raise UsageError(f"{name} configuration: text: {error}", hint) from error
    except ArithmeticError as error:
        raise UsageError(f"{name} configuration: {_TOO_LARGE}", hint) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = _place(first, content) or "text"
        raise UsageError(f"{name} configuration: {place}: {shortened(first['msg'], 240)}", hint) from error


def _usage_error(error: ValidationError, name: str, values: dict[str, Any]) -> UsageError:
    """Translate the first violation: the field with its value, and the rules of its type."""
    errors = error.errors(include_url=False)
    first, place = errors[0], _place(errors[0], values)
    if first["type"] == "unexpected_keyword_argument":
        return UsageError(f"{name}: no field is called '{place}'", "check its spelling")
    found = "is missing" if first["type"] == "missing" else f"is {_shown(first['input'])}"
    rules = [_rule(other["msg"]) for other in errors if _place(other, values) == place]
    hint = " or ".join(dict.fromkeys(rules)).replace(" or it must be", " or")
    return UsageError(f"{name}: {place} {found}", hint)


def _shown(value: object) -> str:
    try:
        return shortened(repr(value))
    except ValueError:  # Python does not print integers of more than 4,300 digits
        return "too large"


def _rule(message: str) -> str:
    message = message.removeprefix("Value error, ").replace("Input should be", "it must be")
    return message[:1].lower() + message[1:]


def _place(error: Any, values: Any) -> str:
    """Return the field names and indices that lead to a violation, without pydantic's names of union branches."""
    place = []
    for number, part in enumerate(error["loc"], start=1):
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):  # not part of the values, unless it is a missing field
            if not (error["type"] == "missing" and number == len(error["loc"])):
                continue
        place.append(shortened(str(part)))
    return ".".join(place)
