"""A terminal: the lines that remain on the screen after a program has written to it."""

import re

_TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


def shown(text: str, width: int) -> list[str]:
    """Return the lines on a terminal of `width` columns, without those at the end that are empty.

    It obeys line breaks, carriage returns, moves of the cursor upwards, and erasure of a line; others do not move it.
    """
    lines, row, column = [""], 0, 0
    for token in _TOKEN.finditer(text):
        found, (number, command) = token.group(), token.groups()
        if found == "\r":
            column = 0
        elif found == "\n":
            row += 1
        elif command == "A":
            row -= int(number or 1)
        elif command == "K":
            lines[row] = "" if number == "2" else lines[row][:column]
        elif command is None:
            for character in found:
                if column == width:
                    row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
                lines[row] = lines[row][:column].ljust(column) + character + lines[row][column + 1 :]
                column += 1
        lines += [""] * (row + 1 - len(lines))
    while lines and not lines[-1].strip():
        lines.pop()
    return [line.rstrip() for line in lines]
