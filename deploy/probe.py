#!/usr/bin/env python3
"""Ask a running bridge's admin endpoint how it is: for container health checks and Kubernetes probes.

    mcp-bridge-probe [healthz|readyz] [ADDR]      ADDR: unix:/path or tcp:HOST:PORT, as given to --admin

Exit 0: the answer was 200. Exit 1: any other answer, or none within two seconds; one line says which.
"""

from __future__ import annotations

import http.client
import socket
import sys

DEFAULT_ADDRESS = "unix:/run/mcp/admin.sock"
# Shorter than the three seconds that the health checks in this repository allow.
TIMEOUT_S = 2.0


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self.path)


def open_connection(address: str) -> http.client.HTTPConnection:
    """A connection, not yet opened, to `unix:/path` or `tcp:HOST:PORT`; ValueError for anything else."""
    kind, _, rest = address.partition(":")
    if kind == "unix" and rest:
        return UnixConnection("\0" + rest[1:] if rest.startswith("@") else rest)
    host, _, port = rest.rpartition(":")
    if kind == "tcp" and host and port.isdigit():
        return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
    raise ValueError(f"bad address {address!r}: use unix:/path or tcp:HOST:PORT")


def main(arguments: list[str]) -> int:
    """Probe, print one line, return the exit code."""
    endpoint = arguments[0] if arguments else "healthz"
    address = arguments[1] if len(arguments) > 1 else DEFAULT_ADDRESS
    try:
        connection = open_connection(address)
        connection.request("GET", f"/{endpoint}")
        response = connection.getresponse()
        body = response.read(1000).decode(errors="replace").strip()
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(f"{endpoint}: no answer from {address}: {error}")
        return 1
    print(f"{endpoint}: {response.status} {body}")
    return 0 if response.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
