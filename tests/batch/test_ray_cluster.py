"""Runs on a Ray cluster of two workers write the same bytes as local runs."""

import ipaddress
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from page4d.batch import ray as ray_cluster
from page4d.batch.jobs import SceneJob
from page4d.batch.ray import Worker
from page4d.batch.ray_connection import descendants, local_cluster
from page4d.errors import InterruptedRunError
from page4d_cli.app import run
from page4d_cli.console import stops_cleanly
from tests.cli.clips import write_scene
from tests.run.test_reconstruct import bytes_of

# Found but not imported: Ray reads its settings on import.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an optional dependency")]

NETWORK = ("--untrained", "--preset", "mv-tiny", "--size", "28", "--no-preview")
CHUNKS = ("--chunk", "2", "--overlap", "1")


@pytest.fixture(scope="module")
def cluster():
    """Start two workers of one CPU each, for all tests of this file: starting takes seconds."""
    with local_cluster(num_cpus=2) as ray:
        yield ray


def reconstruct(*arguments: object) -> int:
    return run(["reconstruct", *map(str, arguments), *NETWORK])


@pytest.mark.usefixtures("cluster")
class TestOnTwoWorkers:
    def test_chunks_predicted_on_workers_are_equal_to_local_ones(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # the working directory of the workers is another
        scene = write_scene(Path("scene"), frames=8)
        assert reconstruct(scene, "--out", tmp_path / "local", *CHUNKS) == 0
        assert reconstruct(scene, "--out", tmp_path / "cluster", *CHUNKS, "--distributed", "ray") == 0
        assert bytes_of(tmp_path / "cluster") == bytes_of(tmp_path / "local")
        records = [json.loads((tmp_path / where / "run.json").read_text()) for where in ("local", "cluster")]
        assert len(records[0]["chunks"]) == 7
        assert records[0]["settings"] == records[1]["settings"]

    def test_scenes_on_workers_are_equal_to_local_ones_and_failures_are_recorded(self, tmp_path):
        scenes = [write_scene(tmp_path / "takes" / name, frames=2) for name in ("one", "two")]
        ended = reconstruct(
            *scenes, tmp_path / "takes" / "absent", "--out", tmp_path / "cluster", "--distributed", "ray"
        )
        assert ended == 8
        assert reconstruct(scenes[1], "--out", tmp_path / "local") == 0
        assert bytes_of(tmp_path / "cluster" / "two") == bytes_of(tmp_path / "local")
        record = json.loads((tmp_path / "cluster" / "batch.json").read_text())
        assert [scene["status"] for scene in record["scenes"]] == ["complete", "complete", "failed"]
        assert record["scenes"][2]["exit_code"] == 2

    def test_an_undecodable_frame_ends_the_run_with_the_same_error_as_locally(self, tmp_path, capsys):
        scene = write_scene(tmp_path / "scene", frames=8)
        # Damaged beyond the part that opening reads, so that decoding on a worker fails.
        video = scene / "cam01.mp4"
        data = bytearray(video.read_bytes())
        middle = len(data) // 3
        data[middle : middle + 400] = bytes(400)
        video.write_bytes(data)
        local = reconstruct(scene, "--out", tmp_path / "local", *CHUNKS)
        local_error = capsys.readouterr().err.splitlines()[-2:]
        ended = reconstruct(scene, "--out", tmp_path / "cluster", *CHUNKS, "--distributed", "ray")
        assert (ended, capsys.readouterr().err.splitlines()[-2:]) == (local, local_error)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs the files of Linux")
class TestPrivacy:
    def test_nothing_listens_beyond_the_loopback_addresses(self, cluster):
        cluster.get(cluster.remote(num_cpus=1)(lambda: 0).remote())  # its worker listens too
        addresses = listening_addresses({os.getpid(), *descendants()})
        assert len(addresses) >= 5  # this process, GCS, raylet, object manager, worker
        assert [address for address in addresses if not address.is_loopback] == []

    def test_a_token_is_required_and_on_no_disk(self, cluster):
        assert os.environ["RAY_AUTH_MODE"] == "token"
        token = os.environ["RAY_AUTH_TOKEN"].encode()
        assert len(token) == 64
        files = (path for path in session_folder(cluster).rglob("*") if path.is_file())
        assert [path for path in files if token in path.read_bytes()] == []

    def test_other_users_cannot_enter_the_folder_of_sockets_and_logs(self, cluster):
        folder = session_folder(cluster)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.stat().st_uid == os.getuid()


def session_folder(ray) -> Path:
    """Return the folder above session_*/sockets/plasma_store and the one that Ray opens to everybody."""
    return Path(ray.nodes()[0]["ObjectStoreSocketName"]).parents[3]


def listening_addresses(processes: set[int]) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the addresses on which processes accept TCP connections. Source: proc(5)."""
    sockets = set()
    for process in processes:
        for handle in Path(f"/proc/{process}/fd").glob("*"):
            try:
                sockets.add(str(handle.readlink()))
            except OSError:
                continue  # closed meanwhile
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                words = bytes.fromhex(fields[1].split(":")[0])
                packed = struct.pack(f">{len(words) // 4}I", *struct.unpack(f"={len(words) // 4}I", words))
                address = ipaddress.ip_address(packed)
                found.append(getattr(address, "ipv4_mapped", None) or address)
    return found


def test_open_sockets_are_found():
    with socket.create_server(("0.0.0.0", 0)):
        assert ipaddress.ip_address("0.0.0.0") in listening_addresses({os.getpid()})


def test_a_signal_ends_the_wait_for_a_worker(cluster):
    endless = cluster.remote(num_cpus=1)(lambda: time.sleep(600)).remote()
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    begin = time.monotonic()
    with pytest.raises(InterruptedRunError) as caught, stops_cleanly():
        ray_cluster._next_done(cluster, [endless])
    cluster.cancel(endless, force=True)
    assert caught.value.exit_code == 143
    assert time.monotonic() - begin < 5


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the files of Linux")
def test_a_signal_while_the_cluster_starts_leaves_no_process_and_no_folder(tmp_path):
    scene = write_scene(tmp_path / "scene", frames=2)
    command = [sys.executable, "-m", "page4d_cli", "reconstruct", str(scene), "--out", str(tmp_path / "out")]
    environment = os.environ | {"HOME": str(tmp_path), "RAY_ADDRESS": "local"}
    run_of = subprocess.Popen(
        [*command, *NETWORK, "--distributed", "ray"], stderr=subprocess.PIPE, text=True, env=environment
    )
    started = wait_for(lambda: [each for each in descendants(run_of.pid) if "gcs_server" in command_of(each)])
    folder = Path(command_of(started[0]).split("--log_dir=")[1].split("\0")[0]).parents[2]
    assert folder.is_dir()
    processes = descendants(run_of.pid)
    run_of.send_signal(signal.SIGTERM)
    _, errors = run_of.communicate(timeout=60)
    assert run_of.returncode == 143
    assert errors.splitlines()[-1].startswith("error: interrupted")
    assert not folder.exists()
    assert not (tmp_path / ".ray").exists()
    wait_for(lambda: not any(command_of(each) for each in processes))


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


def wait_for(condition, seconds: float = 60):
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return value


def test_a_worker_that_dies_again_and_again_is_no_internal_error(cluster):
    died = cluster.remote(num_cpus=1, max_retries=0)(lambda: os.kill(os.getpid(), signal.SIGKILL)).remote()
    with pytest.raises(cluster.exceptions.RayError) as caught:
        ray_cluster._result(cluster, ray_cluster._next_done(cluster, [died]))
    outcome = ray_cluster._lost(SceneJob(scene=Path("scene"), out=Path("out")), caught.value)
    assert outcome.exit_code == 6
    assert "possibly out of memory" in outcome.error
    assert "--memory" in outcome.hint


def test_the_number_of_workers_follows_from_the_resources_of_the_cluster():
    assert Worker(threads=2, gpu=False).max_workers({"CPU": 9, "GPU": 3}) == 4
    assert Worker(threads=2, gpu=True).max_workers({"CPU": 9, "GPU": 3}) == 3
    assert Worker(threads=16, gpu=False).max_workers({"CPU": 4}) == 1
