import socket

import pytest

from page4d.errors import CapabilityError
from page4d.viewer.server import HOST, LAST_PORT, free_port


def test_the_next_free_port_is_taken():
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        if port == LAST_PORT:
            pytest.skip("no port is left")
        assert free_port(port) > port


def test_a_free_port_is_returned_itself():
    port = free_port(0)
    assert port > 1023
    assert free_port(port) == port


def test_there_may_be_no_free_port():
    with (
        socket.create_server((HOST, LAST_PORT)),
        pytest.raises(CapabilityError, match="no port from 65535 on is free"),
    ):
        free_port(LAST_PORT)
