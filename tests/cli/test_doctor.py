"""`page4d doctor`: what the processor can do."""

import pytest

from page4d_cli.commands import doctor


@pytest.mark.parametrize(("flags", "is_named"), [({"processor", "BogoMIPS"}, True), ({"no_such_flag"}, False)])
def test_a_cpu_with_bfloat16_is_named(flags: set[str], is_named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of every /proc/cpuinfo stand for the flags."""
    monkeypatch.setattr(doctor, "_BF16_FLAGS", flags)
    found = doctor._processor()
    assert found.ok
    assert ("--precision bf16" in found.found) == is_named
