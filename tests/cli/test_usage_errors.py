"""Command lines that cannot be parsed, and help on narrow terminals."""

import re

import pytest
from rich.cells import cell_len

from page4d_cli.app import app, run

COMMANDS = sorted(str(command.name) for command in app.registered_commands)


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("reconstrut", "No such command 'reconstrut'", "did you mean reconstruct, report? 'page4d --help' lists"),
        ("--bogus", "No such option: --bogus", "'page4d --help' lists the commands"),
        ("reconstruct", "Missing argument 'SCENE'", ""),
        ("reconstruct a --ouput x", "No such option: --ouput", "did you mean --out? 'page4d reconstruct --help'"),
        ("reconstruct a --out", "Option '--out' requires an argument", ""),
        ("reconstruct a --out x --json=3", "Option '--json' does not take a value", ""),
        ("reconstruct a --out x --size abc", "Invalid value for '--size': 'abc' should be a valid integer", ""),
        ("reconstruct a --out x --overlap -1", "Invalid value for '--overlap': '-1' should be greater than or", ""),
        ("reconstruct a --out x --precision foo", "Invalid value for '--precision': 'foo' is not one of 'auto'", ""),
        ("reconstruct a --out x --frames 1-2", "Invalid value for '--frames': '1-2' is not of the form A:B", ""),
        ("train", "Missing option '--out'", "'page4d train --help' lists the options"),
        ("doctor extra", "Got unexpected extra argument", "'page4d doctor --help' lists the options"),
        (f"doctor {'x ' * 500}", "Got unexpected extra argument", ""),
        (f"reconstruct a --size {'9' * 5000}", "Invalid value for '--size'", ""),
        (f"reconstruct a --out x --frames {'x' * 5000}", "Invalid value for '--frames'", ""),
        (f"reconstruct a --out x --chunk {'9' * 5000}", "Invalid value for '--chunk'", ""),
        (f"reconstruct a --out x --views {'9' * 5000}", "", ""),
        (f"inspect-shapes --{'x' * 5000}", "No such option: --xxx", ""),
    ],
)
def test_usage_errors_have_two_short_lines_and_code_2(line, message, hint, cli) -> None:
    ended = cli(*line.split())
    assert (ended.code, ended.out) == (2, "")
    first, second = ended.err.splitlines()
    assert first.startswith(f"error: {message}")
    assert second.startswith(f"hint:  {hint}")
    assert max(len(first), len(second)) < 250


def test_a_control_character_in_an_option_is_escaped(cli) -> None:
    assert "\x1b" not in cli("reconstruct", "--\x1b[31mred").err


def test_help_without_arguments_has_code_2_as_nothing_was_done(cli) -> None:
    ended = cli()
    assert (ended.code, ended.err) == (2, "")
    assert ended.out == cli("--help").out


@pytest.mark.parametrize("command", ["", *COMMANDS, "weights", "weights get", "weights list", "weights show"])
def test_help_is_complete_on_a_narrow_terminal(command, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert run([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert "╭" not in out
    assert "…" not in out
    assert not re.search(r"\w\.\.\.$", out, re.MULTILINE)
    assert [line for line in out.splitlines() if cell_len(line) > 60 and not line.startswith("  --")] == []
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*command.split(), "--help"]) == 0
    assert "╭" in capsys.readouterr().out


@pytest.mark.parametrize("given", ["", "0", "-5", "wide", "9" * 5000])
def test_a_variable_that_is_no_width_changes_nothing(given, monkeypatch, cli) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    expected = [cli("inspect-shapes", "--model", "mv-tiny"), cli("doctor", "extra"), cli("doctor", "--help")]
    monkeypatch.setenv("COLUMNS", given)
    assert [cli("inspect-shapes", "--model", "mv-tiny"), cli("doctor", "extra"), cli("doctor", "--help")] == expected
    assert "parameters" in expected[0].out
