"""A free port of this machine."""

import errno
import socket

from page4d.errors import CapabilityError

HOST = "127.0.0.1"
"""Address of the viewer: programs of other machines cannot reach it."""

LAST_PORT = 65_535
_ATTEMPTS = 100


def free_port(wanted: int) -> int:
    """Return the wanted port if it is free, else the next free one; any free port for 0.

    Raises:
        CapabilityError: if there is none.
    """
    reason = "in use"
    for port in range(wanted, min(wanted + _ATTEMPTS, LAST_PORT + 1)):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                reason = "in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
                continue
            return int(probe.getsockname()[1])
    raise CapabilityError(f"no port from {wanted} on is free: {reason}", "give another --port, such as 8080")
