"""`page4d weights` and `--weights NAME`: tables, reports, and errors of a run from a hub on this machine."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS
from page4d.output.reader import open_output
from page4d.weights.catalogue import CATALOGUE
from page4d.weights.names import BUNDLED_FILE
from page4d.weights.store import save_network
from tests.cli.clips import write_scene
from tests.weights.checkpoints import INSIDE, empty_checkpoint, manifest
from tests.weights.hub_server import COMMIT, HubServer, Repository

BASE = CATALOGUE["da3-base"]
VGGT = CATALOGUE["vggt"]
ROOM = Path(__file__).parents[2] / "samples" / "room"


@pytest.fixture
def served(hub: HubServer, tmp_path: Path) -> HubServer:
    """The hub with small page4d files in the place of two checkpoints of the catalogue."""
    torch.manual_seed(0)
    path = tmp_path / "tiny.safetensors"
    save_network(build_network(PRESETS["mv-tiny"]), path, {"licence": "as published", "description": "tiny"})
    for entry in (BASE, VGGT):
        hub.repositories[entry.repository] = Repository({entry.file: path.read_bytes()})
    return hub


class TestList:
    @pytest.mark.usefixtures("served")
    def test_json_holds_the_catalogue_and_what_is_here(self, cli) -> None:
        cli("weights", "get", "da3-base", "--quiet")
        found = {row["name"]: row for row in json.loads(cli("weights", "list", "--json").out)}
        assert list(found) == ["mv-demo", *CATALOGUE]
        assert (found["mv-demo"]["here"], found["mv-demo"]["commercial"]) == ("ready", True)
        assert (found["da3-base"]["here"], found["vggt"]["here"]) == ("fetched", "absent")
        assert found["vggt"]["commercial"] is False
        assert "fetched" in next(line for line in cli("weights", "list").out.splitlines() if "da3-base" in line)


@pytest.mark.parametrize(
    "words",
    [
        "benchmark",
        "inspect-shapes",
        "train --out run --preset tiny --until-samples 4",
        f"reconstruct {ROOM} --out out",
    ],
)
def test_weights_with_another_hash_are_refused(words, cli, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    content = bytearray(BUNDLED_FILE.read_bytes())
    pin = hashlib.sha256(content).hexdigest()
    content[-7] ^= 4
    found = hashlib.sha256(content).hexdigest()
    Path("model.safetensors").write_bytes(content)
    weights = ("--weights", "model.safetensors")
    for options, code, message in (
        ((*weights, "--sha256", pin), 4, f"model.safetensors has sha256 {found[:12]}.., expected {pin[:12]}.."),
        ((*weights, "--sha256", "ab12"), 2, "'ab12' is not a SHA-256"),
        (("--sha256", pin), 2, "--sha256 without weights"),
    ):
        ended = cli(*words.split(), *options)
        assert (ended.code, message in ended.err) == (code, True), ended.err


@pytest.mark.parametrize("words", ["get mv-demo", "show mv-demo", "show MV-Demo"])
def test_the_bundled_network_is_in_the_catalogue(words, cli) -> None:
    ended = cli("weights", *words.split())
    assert (ended.code, ended.err) == (0, "")
    assert f"{BUNDLED_FILE} (" in ended.out
    assert cli("weights", "get", "mv-demo", "--quiet").out == f"{BUNDLED_FILE}\n"
    assert json.loads(cli("weights", *words.split(), "--json").out)["path"] == str(BUNDLED_FILE)


class TestGet:
    def test_the_file_is_fetched_once_and_its_size_and_path_printed(self, served, cli) -> None:
        ended = cli("weights", "get", "da3-base")
        size = len(served.repositories[BASE.repository].files[BASE.file])
        assert ended.err.splitlines()[1].startswith(f"fetching da3-base: {size / 1e6:.1f} MB from 127.0.0.1:")
        fields = dict(line.split(maxsplit=1) for line in ended.out.splitlines())
        assert fields["commit"] == COMMIT
        assert Path(fields["file"]).is_file()
        again = cli("weights", "get", "da3-base")
        assert (again.code, again.out, again.err) == (0, ended.out, "")

    def test_json_and_quiet_are_for_scripts(self, served, cli) -> None:
        ended = cli("weights", "get", "vggt", "--json", "--quiet")
        assert ended.err == "warning: vggt: licence VGGT License v1; commercial use not permitted\n"
        found = json.loads(ended.out)
        assert (found["commercial"], found["licence"]) == (False, "as published")
        assert found["source"]["revision"] == COMMIT
        assert cli("weights", "get", "vggt", "--quiet").out == found["path"] + "\n"
        assert len(served.ranges()) == 1

    @pytest.mark.usefixtures("served")
    def test_errors_have_two_lines(self, cli, tmp_path) -> None:
        ended = cli("weights", "get", "hf:lab/other")
        assert ended.code == 4
        assert ended.err.splitlines()[-2].endswith("has no repository lab/other, or it is private (401)")
        assert cli("weights", "get", tmp_path / "tiny.safetensors").code == 2
        assert cli("weights", "get", "vggtt").code == 2
        ended = cli("weights", "get", "da3-base", "--sha256", "0" * 64)
        assert (ended.code, ended.err.splitlines()[-2][:33]) == (4, "error: model.safetensors has sha2")


class TestShow:
    def test_a_name_is_described_without_a_request(self, hub, cli) -> None:
        ended = cli("weights", "show", "vggt-commercial")
        assert "commercial use permitted" in ended.out
        assert "hf:facebook/VGGT-1B-Commercial:vggt_1B_commercial.pt, gated" in ended.out
        assert json.loads(cli("weights", "show", "pi3", "--json").out)["repository"] == "yyfz233/Pi3"
        assert hub.requests == []

    def test_a_file_is_described(self, served, cli, tmp_path) -> None:
        path = tmp_path / "tiny.safetensors"
        ended = cli("weights", "show", path)
        assert ended.code == 0, ended.err
        parameters = sum(value.numel() for value in build_network(PRESETS["mv-tiny"]).state_dict().values())
        assert f"parameters  {parameters:,}" in ended.out
        assert "as published" in ended.out
        found = json.loads(cli("weights", "show", path, "--json").out)
        assert found["settings"]["depth"] == PRESETS["mv-tiny"].depth
        assert cli("weights", "show", tmp_path / "missing.safetensors").code == 4
        assert served.requests == []

    def test_a_published_file_is_described_with_the_command_that_takes_it(self, cli, tmp_path) -> None:
        encoder = json.loads((INSIDE / "encoders" / "manifests.json").read_text())["twins_svt_small"]
        for kind, shapes, use in (
            ("network", {name: spec.shape for name, spec in manifest("pi3").items()}, "reconstruct SCENE --out OUT"),
            ("encoder", encoder, "convert-weights"),
        ):
            shown = cli("weights", "show", empty_checkpoint(tmp_path, shapes)).out
            assert re.search(f"kind +published {kind}:", shown)
            assert re.search(f"use +page4d {use}", shown)


class TestRuns:
    def test_a_run_by_name_records_licence_and_source(self, served, cli, tmp_path) -> None:
        scene = write_scene(tmp_path / "scene")
        arguments = ("--size", "28", "--no-preview", "--no-refine", "--frames", "0:1", "--weights", "vggt")
        plan = cli("reconstruct", scene, "--out", tmp_path / "out", *arguments, "--dry-run")
        assert plan.code == 0, plan.err
        assert "VGGT-1B (vggt)" in plan.out
        assert "commercial use not permitted" in plan.err
        ended = cli("reconstruct", scene, "--out", tmp_path / "out", *arguments)
        assert ended.code == 0, ended.err
        assert "commercial" not in ended.err
        network = open_output(tmp_path / "out").run.network
        assert (network.name, network.commercial) == ("VGGT-1B (vggt)", False)
        assert (network.source.repository, network.source.revision) == (VGGT.repository, COMMIT)
        assert network.source.sha256 == network.sha256
        assert len(served.ranges()) == 1

    def test_the_network_of_the_masks_is_shown_if_it_is_another_one(self, cli, tmp_path) -> None:
        """One instant has no motion."""
        path = tmp_path / "tiny.safetensors"
        network = build_network(replace(PRESETS["mv-tiny"], mask=None))
        save_network(network, path, {"licence": "as published", "description": "tiny"})
        arguments = ("--out", tmp_path / "out", "--weights", path, "--dry-run")
        scene = write_scene(tmp_path / "scene")
        row = re.compile(r"^masks +what moves, by mv-demo", re.MULTILINE)
        assert row.search(cli("reconstruct", scene, *arguments).out)
        assert not row.search(cli("reconstruct", scene, *arguments, "--frames", "0:1").out)

    @pytest.mark.usefixtures("served")
    def test_the_licence_is_shown_for_runs_with_measured_depth_too(self, cli, tmp_path) -> None:
        arguments = ("--out", tmp_path / "out", "--weights", "vggt", "--depth", tmp_path, "--dry-run")
        ended = cli("reconstruct", write_scene(tmp_path / "scene"), *arguments)
        assert "commercial use not permitted" in ended.err

    def test_nothing_is_fetched_for_a_run_that_is_refused(self, served, cli, tmp_path) -> None:
        scene = write_scene(tmp_path / "scene")
        assert cli("reconstruct", tmp_path / "none", "--out", tmp_path / "out", "--weights", "vggt").code == 2
        assert cli("reconstruct", scene, "--out", scene, "--weights", "vggt").code == 2
        assert served.requests == []

    def test_other_commands_take_names_too(self, served, cli) -> None:
        ended = cli("inspect-shapes", "--weights", "da3-base", "--times", 1, "--views", 1, "--size", 28)
        assert (ended.code, ended.out.partition(":")[0]) == (0, "da3-base")
        arguments = ("--times", "1", "--views", "1", "--size", "28", "--json", "--quiet")
        ended = cli("benchmark", "--weights", "da3-base", *arguments)
        assert (ended.code, json.loads(ended.out)["network"]) == (0, "da3-base")
        assert len(served.ranges()) == 1
