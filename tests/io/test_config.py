"""Configuration records: what pydantic refuses comes back as an error of two lines, and JSON round-trips."""

import pickle
from dataclasses import FrozenInstanceError, replace
from enum import StrEnum
from typing import Annotated

import pytest
import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt, TypeAdapter, ValidationError
from torch import Tensor

from page4d.errors import UsageError
from page4d.io.json_records import DOUBLES, FileModel, config_from_json, config_record, config_to_json


class Kind(StrEnum):
    A = "a"
    B = "b"


@config_record("inner")
class Inner:
    number: PositiveInt = 1
    layers: tuple[int, ...] = (1,)
    kind: Kind = Kind.A

    def __post_init__(self) -> None:
        if self.number == len(self.layers) + 5:
            raise UsageError("inner: number and layers contradict each other", "change one of them")


@config_record("outer")
class Outer:
    inner: Inner = Inner()
    rate: Annotated[float, Field(ge=0, lt=1)] = 0.0
    views: PositiveInt | Annotated[tuple[str, ...], Field(min_length=1)] | None = None


ADAPTER = TypeAdapter(Outer)


@pytest.mark.parametrize(
    ("record", "values", "message", "hint"),
    [
        (Inner, {"number": 0}, "inner: number is 0", "it must be greater than 0"),
        (Inner, {"number": 6}, "inner: number and layers contradict each other", "change one of them"),
        (Inner, {"numbr": 1}, "inner: no field is called 'numbr'", "did you mean number? choose from"),
        (Inner, {"kind": "c"}, "inner: kind is 'c'", "it must be 'a' or 'b'"),
        (Inner, {"kind": "A"}, "inner: kind is 'A'", "did you mean a? it must be 'a' or 'b'"),
        (Inner, {"layers": ["x"]}, "inner: layers.0 is 'x'", "it must be a valid integer"),
        (Outer, {"views": 0}, "outer: views is 0", "it must be greater than 0 or a valid tuple"),
        (
            Outer,
            {"views": ()},
            "outer: views is ()",
            "it must be a valid integer or tuple should have at least 1 item",
        ),
        (Outer, {"views": ("a", 1)}, "outer: views is ('a', 1)", "it must be a valid integer"),
        (Outer, {"inner": {"number": 0}}, "outer: inner.number is 0", "it must be greater than 0"),
        (Outer, {"inner": {"layers": [1, "x"]}}, "outer: inner.layers.1 is 'x'", "it must be a valid integer"),
    ],
)
def test_a_violation_names_field_value_and_rule(record: type, values: dict, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        record(**values)
    assert raised.value.message == message
    assert raised.value.hint.startswith(hint)
    assert record is Inner or raised.value.option == next(iter(values))


def test_values_are_coerced_and_records_are_frozen_and_picklable() -> None:
    record = Inner(layers=[1, 2], kind="b")
    assert record == replace(Inner(), layers=(1, 2), kind=Kind.B)
    assert pickle.loads(pickle.dumps(record)) == record
    with pytest.raises(FrozenInstanceError):
        record.number = 3


def test_json_round_trip_and_defaults() -> None:
    record = Outer(inner=Inner(number=3, kind="b"), rate=0.25)
    text = config_to_json(record)
    assert "\n" not in text
    assert config_from_json(ADAPTER, text, "outer", "", strict=True) == record
    assert config_from_json(ADAPTER, "{}", "outer", "", strict=True) == Outer()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"inner": {"number": 6}}', "inner: number and layers contradict each other"),
        ('{"inner": {"number": 0}}', "outer configuration: inner.number: Input should be greater than 0"),
        ('{"inner": {"number": "1"}}', "outer configuration: inner.number: Input should be a valid integer"),
        ('{"views": 0}', "outer configuration: views: Input should be greater than 0"),
        ('{"views": 1, "views": 2}', "outer configuration: text: key 'views' appears twice"),
        ('{"rate": 1e999}', "outer configuration: rate: Input should be a finite number"),
        ('{"views": ' + "[" * 100_000, "outer configuration: text: it is nested too deeply"),
        ('{"views": ' + "9" * 10_000 + "}", "outer configuration: text: a number has too many digits"),
        ('{"other": 1}', "outer configuration: other: Unexpected keyword argument"),
        ("no JSON", "outer configuration: text: line 1: Expecting value"),
    ],
)
def test_json_is_strict(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        config_from_json(ADAPTER, text, "outer", "print a valid one", strict=True)
    assert raised.value.message.startswith(message)


def test_numbers_that_overflow_in_a_rule_are_refused() -> None:
    @config_record("share")
    class Share:
        part: float
        number: int

        def __post_init__(self) -> None:
            if not self.part * self.number:
                raise UsageError("share: nothing is left", "")

    with pytest.raises(UsageError, match="share: a number is beyond all limits"):
        Share(part=0.5, number=10**400)
    with pytest.raises(UsageError, match="share configuration: a number is beyond all limits") as raised:
        config_from_json(TypeAdapter(Share), '{"part": 0.5, "number": 1' + "0" * 400 + "}", "share", "correct it")
    assert raised.value.hint == "correct it"


class Rows(FileModel):
    rows: Annotated[Float[Tensor, "*n 2"], DOUBLES]


def test_tensors_are_lists_in_json_and_read_back_exactly() -> None:
    rows = torch.rand(3, 2, dtype=torch.float64)
    record = Rows(rows=rows)
    again = Rows.model_validate_json(record.model_dump_json())
    assert record.model_dump(mode="json") == {"rows": rows.tolist()}
    assert torch.equal(again.rows, rows)
    assert Rows(rows=rows[0].float()).rows.dtype == torch.float64


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("[[1, 2], [3]]", "rows differ"),
        ("[1, {}]", "not numbers"),
        (f"[1, 1{'0' * 400}]", "not numbers"),
        ("[1, 2, 3]", r"\[3\] numbers, expected finite ones \[\*n 2\]"),
        ("[1, null]", "expected finite"),
        ("[1, NaN]", "expected finite"),
        ("7", "expected finite"),
    ],
)
def test_tensors_of_other_shapes_or_entries_are_refused(rows: str, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Rows.model_validate_json(f'{{"rows": {rows}}}')
