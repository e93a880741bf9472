"""What the configurations of encoders have in common: the numbers they refuse."""

from page4d.errors import UsageError


def check_positive(kind: str, *numbers: int) -> None:
    """Refuse sizes below 1.

    Raises:
        UsageError: if there is one.
    """
    if min(numbers) < 1:
        raise UsageError(f"encoder {kind}: a size of {min(numbers)}", "use sizes of at least 1")


def check_heads(dims: tuple[int, ...], num_heads: tuple[int, ...]) -> None:
    """Refuse widths that do not divide into their heads.

    Raises:
        UsageError: naming the first.
    """
    for dim, heads in zip(dims, num_heads, strict=True):
        if dim % heads:
            raise UsageError(f"encoder: width {dim} does not divide into {heads} heads", "choose a multiple")


def check_drop_path(rate: float) -> None:
    """Refuse what is no probability below 1.

    Raises:
        UsageError: if it is none.
    """
    if not 0 <= rate < 1:
        raise UsageError(f"encoder: drop_path {rate}", "use at least 0 and less than 1")


def check_classes(num_classes: int | None) -> None:
    """Refuse an empty head.

    Raises:
        UsageError: if there are no classes.
    """
    if num_classes is not None and num_classes < 1:
        raise UsageError(f"encoder: num_classes {num_classes}", "use at least 1, or none for no head")
