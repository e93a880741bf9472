"""Weights from a hub on this machine: fetched, resumed, verified, pinned, converted once, and refused clearly."""

import errno
import json
import multiprocessing
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save

import page4d
from page4d.errors import Level, Notice, OutputError, UsageError, WeightsError
from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS
from page4d.weights import hub
from page4d.weights import resolve as conversion_cache
from page4d.weights.catalogue import CATALOGUE, RepositoryKind
from page4d.weights.conversion.convert import ConvertSettings, plan_conversion, write_conversion
from page4d.weights.families.family import Family
from page4d.weights.families.table import FAMILIES
from page4d.weights.hub import is_fetched
from page4d.weights.names import HubReference, parse_weights, pin_file, read_pin
from page4d.weights.resolve import FoundWeights, bundled_weights, find_weights
from page4d.weights.store import save_network
from tests.weights.checkpoints import Checkpoint, checkpoint, page4d_and_pi3
from tests.weights.hub_server import COMMIT, TOKEN, HubServer, Repository

PI3 = CATALOGUE["pi3"]
Disk = namedtuple("Disk", "total used free")


class Watcher:
    """Collects notices and the steps of progress."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.steps: dict[str, tuple[int, int]] = {}

    def notice(self, notice: Notice) -> None:
        self.notices.append(notice)

    def progress(self, done: int, total: int, stage: str = "") -> None:
        self.steps[stage] = (done, total)

    @property
    def texts(self) -> list[str]:
        return [notice.text for notice in self.notices]


@pytest.fixture
def pi3(monkeypatch) -> Checkpoint:
    """A small Pi3 in the place of the published one."""
    small = checkpoint("pi3_c")
    data = FAMILIES[Family.PI3]
    reader = replace(data.network, published={"": small.config})
    monkeypatch.setitem(FAMILIES, Family.PI3, replace(data, network=reader))
    return small


@pytest.fixture
def served(hub: HubServer, pi3: Checkpoint) -> HubServer:
    """The hub with the small Pi3 in the repository of the catalogue."""
    hub.repositories[PI3.repository] = Repository(
        {PI3.file: save(pi3.weights), "config.json": b"{}", "README.md": b""}
    )
    return hub


@pytest.fixture
def own(hub: HubServer, tmp_path: Path) -> HubServer:
    """The hub with a file that page4d wrote."""
    torch.manual_seed(0)
    path = tmp_path / "own.safetensors"
    save_network(build_network(PRESETS["mv-tiny"]), path, {"licence": "CC0-1.0", "description": "tiny"})
    hub.repositories["lab/tiny"] = Repository({"model.safetensors": path.read_bytes()})
    return hub


def blobs(hub_cache: Path) -> list[Path]:
    return sorted(hub_cache.glob("models--*/blobs/*"))


class TestNames:
    @pytest.mark.parametrize(
        ("text", "repository", "revision", "file"),
        [
            ("da3-base", "depth-anything/DA3-BASE", None, "model.safetensors"),
            ("DA3-Base", "depth-anything/DA3-BASE", None, "model.safetensors"),
            ("hf:depth-anything/DA3-BASE", "depth-anything/DA3-BASE", None, "model.safetensors"),
            ("hf:lab/net", "lab/net", None, None),
            ("hf:lab/net@v1.0", "lab/net", "v1.0", None),
            ("hf:lab/net@refs/pr/1:a/b.safetensors", "lab/net", "refs/pr/1", "a/b.safetensors"),
            ("hf:lab/net:x.pt", "lab/net", None, "x.pt"),
        ],
    )
    def test_names_and_places_of_the_hub(self, text, repository, revision, file) -> None:
        found = parse_weights(text)
        assert (found.repository, found.revision, found.file) == (repository, revision, file)

    def test_a_repository_of_data_is_known_or_stated(self) -> None:
        for text in ("page4d", "hf:zhouk777/PAGE4D:checkpoint_mask.pt", "hf:datasets/lab/net"):
            assert parse_weights(text).kind is RepositoryKind.DATASET
        assert parse_weights("hf:zhouk777/PAGE4D:checkpoint_mask.pt").entry is CATALOGUE["page4d-mask"]

    @pytest.mark.parametrize("text", ["hf:", "hf:net", "hf:a/b/c", "hf:a/b@", "hf:a/b:", "hf:a--b/c", "hf:a/b@x..y"])
    def test_a_malformed_place_is_refused(self, text) -> None:
        with pytest.raises(UsageError, match="is not of the form"):
            parse_weights(text)

    @pytest.mark.parametrize("file", ["../a.safetensors", "/a.safetensors", "a//b.pt", "a\\b.pt", "a/./b.pt"])
    def test_a_file_outside_of_the_repository_is_refused(self, file) -> None:
        with pytest.raises(UsageError, match="is not the name of a file"):
            parse_weights(f"hf:a/b:{file}")

    def test_other_files_and_addresses_are_refused(self) -> None:
        with pytest.raises(UsageError, match="is not a weights file"):
            parse_weights("hf:a/b:run.py")
        with pytest.raises(UsageError, match="are a web address"):
            parse_weights("https://huggingface.co/a/b")

    def test_an_unknown_name_shows_a_similar_one(self) -> None:
        with pytest.raises(UsageError) as caught:
            parse_weights("da3-bse")
        assert "da3-base" in caught.value.hint

    def test_a_path_or_an_existing_file_wins(self, tmp_path, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        for text in ("./pi3", "missing.safetensors", "missing.pt", str(tmp_path)):
            assert parse_weights(text) == Path(text)
        (tmp_path / "vggt").mkdir()
        assert isinstance(parse_weights("vggt"), HubReference)
        (tmp_path / "pi3").write_bytes(b"x")
        assert parse_weights("pi3") == Path("pi3")
        assert parse_weights(Path("da3-base")) == Path("da3-base")


class TestFetch:
    def test_a_name_is_fetched_checked_converted_and_pinned_once(self, served, pi3, tmp_path) -> None:
        watcher = Watcher()
        found = find_weights("pi3", observer=watcher)
        settings = ConvertSettings(licence="CC-BY-NC-4.0")
        write_conversion(plan_conversion([pi3.save(tmp_path)], settings), tmp_path / "direct.safetensors")
        tensors, direct = load_file(found.path), load_file(tmp_path / "direct.safetensors")
        assert tensors.keys() == direct.keys()
        assert all(torch.equal(tensors[name], direct[name]) for name in direct)
        assert (found.commercial, found.title) == (False, "Pi3 (pi3)")
        source = found.source
        assert (source.repository, source.revision, source.file) == (PI3.repository, COMMIT, PI3.file)
        assert watcher.notices[0] == Notice("pi3: licence CC-BY-NC-4.0; commercial use not permitted", Level.WARNING)
        size = len(served.repositories[PI3.repository].files[PI3.file])
        assert watcher.texts[1].startswith(f"fetching pi3: {size / 1e6:.1f} MB from 127.0.0.1:")
        assert watcher.steps["fetch"] == (size + 2, size + 2)
        assert watcher.steps["convert"][0] == watcher.steps["convert"][1]
        asked = len(served.requests)
        again = Watcher()
        assert find_weights("pi3", observer=again) == found
        assert (len(served.requests), again.texts) == (asked, [])
        pin = json.loads(pin_file(parse_weights("pi3")).read_text())
        assert (pin["revision"], pin["files"][0]["sha256"], pin["licence_shown"]) == (COMMIT, source.sha256, True)

    def test_requests_go_to_the_repository_alone_and_describe_no_machine(self, served) -> None:
        find_weights("pi3")
        assert served.agents == {f"page4d/{page4d.__version__}"}
        kinds = {path.split("/")[1] for path, _ in served.requests}
        assert kinds == {"api", "yyfz233"}
        assert [path for path, _ in served.requests if path.startswith("/api")] == [
            f"/api/models/{PI3.repository}/revision/main"
        ]

    @pytest.mark.usefixtures("served")
    def test_python_shows_the_licence_once_and_a_silent_call_leaves_it_to_the_next(self, pi3, capsys) -> None:
        network = page4d.load("pi3", device="cpu", observer=None)
        assert network.config.encoder.embed_dim == pi3.config.encoder.embed_dim
        assert "licence" not in capsys.readouterr().err
        page4d.build_predictor("pi3", device="cpu")
        text = "pi3: licence CC-BY-NC-4.0; commercial use not permitted"
        assert capsys.readouterr().err == f"page4d: warning: {text}\n"
        page4d.load("pi3", device="cpu")
        assert capsys.readouterr().err == ""

    def test_a_file_of_page4d_is_used_as_it_is(self, own) -> None:
        found = find_weights("hf:lab/tiny")
        assert found.path.read_bytes() == own.repositories["lab/tiny"].files["model.safetensors"]
        assert found.sha256 == found.source.sha256
        assert (found.commercial, found.title) == (None, None)

    @pytest.mark.usefixtures("served")
    def test_the_given_digest_is_that_of_the_published_file(self) -> None:
        found = find_weights("pi3")
        assert find_weights("pi3", found.source.sha256) == found
        with pytest.raises(WeightsError, match="has sha256"):
            find_weights("pi3", "0" * 64)

    def test_shards_are_fetched_by_their_index(self, hub, pi3, tmp_path) -> None:
        folder = pi3.save_shards(tmp_path)
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        hub.repositories["lab/net"] = Repository(files)
        found = find_weights("hf:lab/net")
        assert read_pin(parse_weights("hf:lab/net")).files[0].name == "model.safetensors.index.json"
        assert len(hub.ranges()) == 3
        assert find_weights(folder).path.read_bytes()[-1000:] == found.path.read_bytes()[-1000:]

    def test_several_weights_files_need_a_choice(self, own) -> None:
        files = own.repositories["lab/tiny"].files
        files |= {"a.safetensors": b"x", "b.safetensors": b"y"}
        assert find_weights("hf:lab/tiny").path.name == "model.safetensors", "the usual name wins"
        own.repositories["lab/two"] = Repository({"a.safetensors": b"x", "b.safetensors": b"y", "c.pt": b"z"})
        with pytest.raises(WeightsError, match=r"has 2 weights files: a\.safetensors, b\.safetensors") as caught:
            find_weights("hf:lab/two")
        assert caught.value.hint.endswith("hf:lab/two:a.safetensors")
        own.repositories["lab/none"] = Repository({"README.md": b"x"})
        with pytest.raises(WeightsError, match="has no weights file"):
            find_weights("hf:lab/none")

    def test_a_hostile_listing_writes_nothing_outside(self, hub, tmp_path) -> None:
        hub.repositories["lab/evil"] = Repository({"../../../../evil.safetensors": b"x"})
        with pytest.raises(WeightsError, match="has no weights file"):
            find_weights("hf:lab/evil")
        assert not list(tmp_path.rglob("evil*"))


class TestInterruptions:
    def test_a_broken_transfer_continues(self, own, monkeypatch) -> None:
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)
        monkeypatch.setattr(time, "sleep", lambda _: None)
        own.break_after, own.breaks = 100_000, 2
        found = find_weights("hf:lab/tiny")
        assert own.ranges() == [None, "bytes=100000-", "bytes=200000-"]
        assert found.path.read_bytes() == own.repositories["lab/tiny"].files["model.safetensors"]

    def test_a_transfer_that_fails_leaves_nothing(self, own, tmp_path, monkeypatch, capfd) -> None:
        monkeypatch.setattr(time, "sleep", lambda _: None)
        own.break_after, own.breaks = 100_000, 10
        with pytest.raises(WeightsError, match=r"cannot fetch weights 'hf:lab/tiny' from 127\.0\.0\.1:\d+: .*closed"):
            find_weights("hf:lab/tiny")
        assert (blobs(tmp_path / "hub"), read_pin(parse_weights("hf:lab/tiny"))) == ([], None)
        assert capfd.readouterr().err == "", "warnings of the library"

    @pytest.mark.usefixtures("own")
    def test_control_c_leaves_nothing(self, tmp_path) -> None:
        class Impatient(Watcher):
            def progress(self, *_: object) -> None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            find_weights("hf:lab/tiny", observer=Impatient())
        assert (blobs(tmp_path / "hub"), read_pin(parse_weights("hf:lab/tiny"))) == ([], None)

    def test_two_processes_fetch_and_convert_once(self, served, tmp_path) -> None:
        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()

        def work() -> None:
            watcher = Watcher()
            results.put((find_weights("pi3", observer=watcher).sha256, "convert" in watcher.steps))

        processes = [context.Process(target=work) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        found = [results.get() for _ in processes]
        assert len({sha256 for sha256, _ in found}) == 1
        assert sum(converts for _, converts in found) == 1
        assert len(served.ranges()) == 2, "the weights and config.json"
        assert not list(tmp_path.rglob("*incomplete")) + list(tmp_path.rglob("*.part"))

    def test_the_disk_is_too_full(self, own, monkeypatch) -> None:
        monkeypatch.setattr("shutil.disk_usage", lambda _: Disk(10**9, 10**9, 1000))
        with pytest.raises(OutputError, match=r"'hf:lab/tiny' needs 0\.\d\d GB in .*, 0\.00 GB are free"):
            find_weights("hf:lab/tiny")
        assert own.ranges() == []

    @pytest.mark.usefixtures("own")
    def test_the_disk_becomes_full(self, tmp_path, monkeypatch) -> None:
        def fail(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("huggingface_hub.file_download.http_get", fail)
        with pytest.raises(OutputError, match=r"disk full$"):
            find_weights("hf:lab/tiny")
        assert blobs(tmp_path / "hub") == []


class TestVerification:
    def test_other_bytes_than_announced_are_refused(self, own, tmp_path) -> None:
        repository = own.repositories["lab/tiny"]
        repository.announced["model.safetensors"] = repository.files["model.safetensors"][:-1] + b"\1"
        with pytest.raises(
            WeightsError, match=r"model\.safetensors has sha256 \w{12}\.\., expected \w{12}\.\."
        ) as caught:
            find_weights("hf:lab/tiny")
        assert "127.0.0.1" in caught.value.hint
        assert blobs(tmp_path / "hub") == []

    def test_another_file_than_the_pinned_one_is_refused(self, own, tmp_path) -> None:
        find_weights("hf:lab/tiny")
        for path in blobs(tmp_path / "hub"):
            path.unlink()
        repository = own.repositories["lab/tiny"]
        repository.files["model.safetensors"] = b"\0" * len(repository.files["model.safetensors"])
        with pytest.raises(WeightsError, match=r"has sha256 .*, expected") as caught:
            find_weights("hf:lab/tiny")
        assert str(pin_file(parse_weights("hf:lab/tiny"))) in caught.value.hint

    def test_the_pinned_commit_is_fetched_again_not_the_newest(self, own, tmp_path) -> None:
        before = find_weights("hf:lab/tiny").sha256
        for path in blobs(tmp_path / "hub"):
            path.unlink()
        assert find_weights("hf:lab/tiny").sha256 == before
        assert [path for path, _ in own.requests if path.startswith("/api")][-1].endswith(COMMIT)

    @pytest.mark.usefixtures("served")
    def test_a_damaged_file_of_the_hub_is_noticed_before_its_conversion(self, tmp_path, monkeypatch) -> None:
        find_weights("pi3")
        largest = max(blobs(tmp_path / "hub"), key=lambda path: path.stat().st_size)
        content = bytearray(largest.read_bytes())
        content[-1] ^= 1
        largest.write_bytes(content)
        monkeypatch.setattr(conversion_cache, "conversion_version", lambda: "newer")
        with pytest.raises(WeightsError, match=r"has sha256 .*, expected") as caught:
            find_weights("pi3")
        assert str(largest) in caught.value.hint

    def test_what_another_tool_fetched_is_verified_and_used_without_a_request(self, served, tmp_path) -> None:
        find_weights("pi3")
        asked = len(served.requests)
        for folder in ("pins", "files"):
            for path in (tmp_path / "cache/page4d/weights" / folder).glob("*"):
                path.unlink()
        find_weights("pi3")
        assert len(served.requests) == asked
        pin_file(parse_weights("pi3")).unlink()
        largest = max(blobs(tmp_path / "hub"), key=lambda path: path.stat().st_size)
        largest.write_bytes(b"\0" + largest.read_bytes()[1:])
        with pytest.raises(WeightsError, match="has sha256"):
            find_weights("pi3")


class TestRefusals:
    def test_a_gated_repository_needs_a_token(self, served, tmp_path, monkeypatch) -> None:
        served.repositories[PI3.repository].gated = True
        with pytest.raises(
            WeightsError, match=r"weights 'pi3' are gated: 127.0.0.1:\d+ asks for permission \(401\)"
        ) as caught:
            find_weights("pi3")
        assert f"accept the licence on {served.address}/{PI3.repository}" in caught.value.hint
        assert "hf auth login" in caught.value.hint
        assert "HF_TOKEN" in caught.value.hint
        assert blobs(tmp_path / "hub") == []
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        find_weights("pi3")

    @pytest.mark.usefixtures("own")
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("hf:lab/other", r"127\.0\.0\.1:\d+ has no repository lab/other, or it is private"),
            ("hf:lab/tiny@v9", "lab/tiny has no revision 'v9'"),
            ("hf:lab/tiny:other.safetensors", "lab/tiny has no file 'other.safetensors'"),
        ],
    )
    def test_what_the_hub_does_not_have(self, text, message) -> None:
        with pytest.raises(WeightsError, match=message):
            find_weights(text)

    def test_an_error_of_the_hub_and_a_page_in_its_place(self, own) -> None:
        for own.status, message in ((503, r"127\.0\.0\.1:\d+ answers with error 503"), (200, "no answer of a hub")):
            with pytest.raises(WeightsError, match=message):
                find_weights("hf:lab/tiny")

    @pytest.mark.usefixtures("hub")
    def test_a_hub_that_cannot_be_reached(self, monkeypatch) -> None:
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
        with pytest.raises(WeightsError, match=r"from 127\.0\.0\.1:1: .*refused") as caught:
            find_weights("pi3")
        assert f"http://127.0.0.1:1/{PI3.repository}/resolve/main/{PI3.file}" in caught.value.hint
        assert "weights=FILE" in caught.value.hint

    def test_a_silent_hub_is_given_up(self, own, monkeypatch) -> None:
        monkeypatch.setattr(hub, "_TIMEOUT_S", 0.2)
        own.silent.set()
        with pytest.raises(WeightsError, match="timed out"):
            find_weights("hf:lab/tiny")

    def test_offline_without_and_with_the_cache(self, own, monkeypatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(constants, "HF_HUB_OFFLINE", True)
            with pytest.raises(
                WeightsError, match="'hf:lab/tiny' are not in the cache and HF_HUB_OFFLINE is set"
            ) as caught:
                find_weights("hf:lab/tiny")
            assert "page4d weights get hf:lab/tiny" in caught.value.hint
            assert own.requests == []
        found = find_weights("hf:lab/tiny")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert find_weights("hf:lab/tiny") == found


class TestConversions:
    def test_a_lost_pin_leads_to_the_same_file(self, served) -> None:
        before, asked = find_weights("pi3"), len(served.requests)
        pin_file(parse_weights("pi3")).write_bytes(b"[" * 100_000)
        assert find_weights("pi3") == before
        assert len(served.requests) == asked

    @pytest.mark.usefixtures("served")
    def test_a_damaged_converted_file_is_named(self) -> None:
        found = find_weights("pi3")
        content = bytearray(found.path.read_bytes())
        content[-1] ^= 1
        found.path.write_bytes(content)
        with pytest.raises(WeightsError) as caught:
            page4d.load("pi3")
        assert caught.value.hint == f"it is damaged: remove '{found.path}', and it is made again"
        found.path.unlink()
        assert find_weights("pi3") == found
        page4d.load("pi3")

    def test_a_changed_conversion_makes_the_file_again_and_removes_the_old_one(self, served, monkeypatch) -> None:
        before = find_weights("pi3")
        assert conversion_cache.conversion_version() in before.path.name
        monkeypatch.setattr(conversion_cache, "conversion_version", lambda: "newer")
        asked = len(served.requests)
        after = find_weights("pi3")
        assert after.path.name.endswith("-newer.safetensors")
        assert after.sha256 == before.sha256
        assert not before.path.exists()
        assert not before.path.with_suffix(".json").exists()
        assert len(served.requests) == asked

    def test_the_version_follows_the_code(self, monkeypatch, tmp_path) -> None:
        for place in conversion_cache._CODE:
            source, target = conversion_cache._ROOT / place, tmp_path / place
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                target.mkdir()
                (target / "a.py").write_text("1")
            else:
                target.write_text("1")
        monkeypatch.setattr(conversion_cache, "_ROOT", tmp_path)
        first = conversion_cache.conversion_version.__wrapped__()
        (tmp_path / "weights/families/a.py").write_text("2")
        assert conversion_cache.conversion_version.__wrapped__() != first

    def test_the_source_may_be_removed_after_the_conversion(self, served, tmp_path) -> None:
        found, asked = find_weights("pi3"), len(served.requests)
        for path in blobs(tmp_path / "hub"):
            path.unlink()
        assert not is_fetched(parse_weights("pi3"))
        assert find_weights("pi3") == found
        assert len(served.requests) == asked

    @pytest.mark.parametrize("form", ["safetensors", "pt"])
    def test_a_published_file_is_converted_once(self, hub, pi3, tmp_path, form) -> None:
        path = pi3.save(tmp_path) if form == "safetensors" else pi3.save_pickle(tmp_path)
        watcher = Watcher()
        found = find_weights(path, observer=watcher)
        assert (found.name, found.commercial) == (path.name, False)
        assert watcher.texts[0].startswith("converting Pi3, once (kept in ")
        again = Watcher()
        assert find_weights(str(path), observer=again) == found
        assert again.texts == []
        path.write_bytes(b"")
        assert find_weights(path) == FoundWeights(path=path), "its reader reports the error"
        assert hub.requests == []

    @pytest.mark.usefixtures("hub")
    def test_a_checkpoint_that_needs_an_option_has_it_in_the_hint(self, tmp_path, monkeypatch) -> None:
        small, _ = page4d_and_pi3()
        data = FAMILIES[Family.PAGE4D]
        monkeypatch.setitem(
            FAMILIES, Family.PAGE4D, replace(data, network=replace(data.network, published={"": small.config}))
        )
        with pytest.raises(UsageError, match="does not record whether it runs with its mask") as caught:
            find_weights(small.save(tmp_path))
        assert "page4d convert-weights" in caught.value.hint
        assert "mask='on'" in caught.value.hint

    def test_files_and_the_bundled_network_need_no_request(self, own, tmp_path) -> None:
        assert find_weights(tmp_path / "own.safetensors") == FoundWeights(path=tmp_path / "own.safetensors")
        assert find_weights(None) == FoundWeights(path=bundled_weights())
        with pytest.raises(UsageError):
            find_weights("no-such-name")
        assert own.requests == []


def test_depth_anything_3_from_the_hub(hub, monkeypatch) -> None:
    small, entry = checkpoint("da3_b"), CATALOGUE["da3-base"]
    data = FAMILIES[Family.DA3]
    reader = replace(data.network, published={"": small.config})
    monkeypatch.setitem(FAMILIES, Family.DA3, replace(data, network=reader))
    hub.repositories[entry.repository] = Repository({entry.file: save(small.weights)})
    assert find_weights("da3-base").commercial is True
    assert page4d.load("da3-base", device="cpu").config.encoder.embed_dim == small.config.encoder.embed_dim
