import sys
from pathlib import Path

import pytest

from page4d.errors import CapabilityError
from page4d.exporters.export import export
from tests.exporters.capture import Capture


def test_without_usd_the_error_names_what_to_install(
    capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pxr", None)
    with pytest.raises(CapabilityError, match="usd needs usd-core") as error:
        export(capture.folder, "usd", tmp_path / "usd")
    assert "usd-core" in error.value.hint
    assert not (tmp_path / "usd").exists()
