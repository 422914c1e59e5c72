"""What systemd is told, by a socket that stands in for its own (sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.notify import STATUS_CHARS, Notifier


@contextlib.contextmanager
def manager(address: str) -> Iterator[socket.socket]:
    """Whoever listens to the notifications."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        sock.settimeout(5)
        yield sock


def received(sock: socket.socket) -> str:
    return sock.recv(4096).decode()


def test_each_message_is_one_datagram_with_the_words_of_systemd(tmp_path: Path) -> None:
    path = str(tmp_path / "n")
    with manager(path) as sock:
        notifier = Notifier.from_environment({"NOTIFY_SOCKET": path})
        notifier.ready()
        notifier.stopping()
        notifier.watchdog()
        before = time.monotonic_ns() // 1000
        notifier.reloading()
        assert [received(sock) for _ in range(3)] == ["READY=1", "STOPPING=1", "WATCHDOG=1"]
        first, second = received(sock).split("\n")
        assert first == "RELOADING=1"
        name, _, value = second.partition("=")
        assert name == "MONOTONIC_USEC"
        assert before <= int(value) <= time.monotonic_ns() // 1000
        notifier.close()


def test_an_abstract_socket_works_too() -> None:
    name = f"mcpb-test-{os.urandom(6).hex()}"
    with manager("\0" + name) as sock:
        notifier = Notifier.from_environment({"NOTIFY_SOCKET": "@" + name})
        notifier.ready()
        assert received(sock) == "READY=1"
        notifier.close()
        notifier.close()


def test_a_status_is_one_bounded_line_and_is_not_repeated(tmp_path: Path) -> None:
    path = str(tmp_path / "n")
    with manager(path) as sock:
        notifier = Notifier.from_environment({"NOTIFY_SOCKET": path})
        for text in ("serving", "serving", "two\nlines READY=1\n", "x" * 1000):
            notifier.status(text)
        notifier.ready()
        assert received(sock) == "STATUS=serving"
        assert received(sock) == "STATUS=two lines READY=1"
        assert received(sock) == "STATUS=" + "x" * STATUS_CHARS
        assert received(sock) == "READY=1"
        notifier.close()


@pytest.mark.parametrize("name", [None, "", "/", "relative", "vsock:2:1234", "/no/such/socket", "/\ud800"])
def test_without_somebody_to_tell_nothing_happens(name: str | None) -> None:
    notifier = Notifier.from_environment({} if name is None else {"NOTIFY_SOCKET": name})
    notifier.ready()
    notifier.status("nobody hears")
    notifier.close()
    notifier.ready()


def test_a_manager_that_does_not_read_keeps_nobody_waiting(tmp_path: Path) -> None:
    path = str(tmp_path / "n")
    with manager(path):
        notifier = Notifier.from_environment({"NOTIFY_SOCKET": path})
        for _ in range(2000):  # far more than a socket's queue holds
            notifier.watchdog()
        notifier.close()


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "1"}, 0.02),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_twice_in_its_time_if_it_is_meant_for_us(
    variables: dict[str, str], seconds: float | None
) -> None:
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": "/run/x", **variables})
    assert notifier.watchdog_s == seconds
    notifier.close()


def test_a_watchdog_without_a_socket_is_not_fed() -> None:
    assert Notifier.from_environment({"WATCHDOG_USEC": "30000000"}).watchdog_s is None
