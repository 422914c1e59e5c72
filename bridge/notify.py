"""What systemd is told about the bridge: `sd_notify` without a library.

One datagram for each message, to the socket that `$NOTIFY_SOCKET` names; without that variable nothing is
sent. Never waits and never raises: whether the service manager listens is no concern of the clients.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Final

STATUS_CHARS: Final = 200
"""It is one line in `systemctl status`."""

SHORTEST_WATCHDOG_S: Final = 0.02
"""The loop is not kept busy by a mistyped WatchdogSec."""


class Notifier:
    """The way to the service manager; `Notifier.from_environment` makes it.

    Attributes:
        watchdog_s: how often to call `watchdog`, in seconds; None if nobody waits for that.
    """

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        self.watchdog_s = watchdog_s
        self._address = address
        self._status = ""
        self._socket: socket.socket | None = None
        if address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> Notifier:
        """As `$NOTIFY_SOCKET`, `$WATCHDOG_USEC` and `$WATCHDOG_PID` say; what is malformed is ignored."""
        name = env.get("NOTIFY_SOCKET", "")
        if name[:1] not in ("/", "@") or len(name) < 2:
            return cls()
        address = "\0" + name[1:] if name[0] == "@" else name
        microseconds = env.get("WATCHDOG_USEC", "")
        for_us = env.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        if for_us and microseconds.isascii() and microseconds.isdigit() and int(microseconds[:18]) > 0:
            # Half the time, as sd_watchdog_enabled(3) advises.
            return cls(address, max(SHORTEST_WATCHDOG_S, int(microseconds[:18]) / 2e6))
        return cls(address)

    def ready(self) -> None:
        """Clients can connect; also the end of a reload."""
        self._send("READY=1")

    def reloading(self) -> None:
        """What SIGHUP asked for has begun; `ready` has to follow."""
        # The kernel's monotonic clock, by which systemd tells the answer to its request from an older one.
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """The bridge was asked to stop, or stops by itself."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Say in one line how things stand; sent only if it has changed."""
        text = " ".join(text.split())[:STATUS_CHARS]
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def watchdog(self) -> None:
        """The event loop goes on."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Send nothing any more; idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: str) -> None:
        if self._socket is not None and self._address is not None:
            try:
                self._socket.sendto(message.encode(errors="replace"), self._address)
            except (OSError, ValueError):
                # Full, gone, or a path that is none: the next message may get through.
                return
