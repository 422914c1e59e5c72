"""Peers that are gone, noticed without reading: contract section 6, "Hang-up"."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator

import pytest
import uvloop

from bridge.hangup import HangupWatch, hung_up

WAIT_S = 10.0
NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[], Awaitable[None]]], None]]:
    """Run an async function to its end, on each of the two event loops, with no error left in the loop."""
    failures: list[dict[str, object]] = []

    def runner(main: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: failures.append(context))
            await asyncio.wait_for(main(), WAIT_S)

        with asyncio.Runner(loop_factory=request.param) as loop_runner:
            loop_runner.run(bounded())

    yield runner
    assert failures == []


Run = Callable[[Callable[[], Awaitable[None]]], None]


def unix_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), WAIT_S)
        conn, _ = server.accept()
    return conn, client


async def turns(count: int = 20) -> None:
    """Let the event loop poll its descriptors a few times, so that what is wrong would have shown."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_full_close_is_reported_once_with_nobody_reading(run: Run) -> None:
    """Row 39: noticed without a write, though unread input stands before the end of file."""

    async def main() -> None:
        watch = HangupWatch(asyncio.get_running_loop())
        ours, theirs = unix_pair()
        gone = asyncio.Event()
        calls: list[int] = []

        def callback() -> None:
            calls.append(1)
            gone.set()

        watch.watch(ours.fileno(), callback)
        epoll = watch._epoll
        theirs.sendall(b"x" * 1000)
        await turns()
        assert calls == []
        theirs.close()
        await gone.wait()
        await turns()
        assert calls == [1]
        assert watch._epoll is epoll  # it was unregistered, not taken for a ghost
        assert ours.recv(2000) == b"x" * 1000
        ours.close()
        watch.close()

    run(main)


def test_a_half_close_is_not_a_hang_up_and_the_full_close_after_it_is(run: Run) -> None:
    """Finding 10: both look alike to `eof_received`."""

    async def main() -> None:
        watch = HangupWatch(asyncio.get_running_loop())
        ours, theirs = unix_pair()
        gone = asyncio.Event()
        watch.watch(ours.fileno(), gone.set)
        theirs.shutdown(socket.SHUT_WR)
        await turns()
        assert ours.recv(1) == b""
        assert not gone.is_set()
        assert not hung_up(ours.fileno())
        ours.sendall(b"the answer still arrives")
        assert theirs.recv(100) == b"the answer still arrives"
        theirs.close()
        await gone.wait()
        assert hung_up(ours.fileno())
        ours.close()
        watch.close()

    run(main)


def test_our_own_shutdown_after_a_half_close_is_a_hang_up_too(run: Run) -> None:
    """The hazard the module's docstring warns of: both directions are finished then."""

    async def main() -> None:
        ours, theirs = unix_pair()
        theirs.shutdown(socket.SHUT_WR)
        assert not hung_up(ours.fileno())
        ours.shutdown(socket.SHUT_WR)
        assert hung_up(ours.fileno())
        ours.close()
        theirs.close()

    run(main)


def test_a_peer_that_was_gone_before_is_reported(run: Run) -> None:
    async def main() -> None:
        watch = HangupWatch(asyncio.get_running_loop())
        ours, theirs = unix_pair()
        theirs.close()
        gone = asyncio.Event()
        watch.watch(ours.fileno(), gone.set)
        await gone.wait()
        ours.close()
        watch.close()

    run(main)


def test_a_client_behind_a_paused_transport_is_noticed(run: Run) -> None:
    """The real situation: the descriptor belongs to a transport of the loop that does not read."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        watch = HangupWatch(loop)
        ours, theirs = unix_pair()
        gone = asyncio.Event()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        transport.pause_reading()
        watch.watch(transport.get_extra_info("socket").fileno(), gone.set)
        theirs.sendall(b"unread")
        theirs.close()
        await gone.wait()
        transport.abort()
        watch.close()

    run(main)


def test_the_writing_end_of_a_pipe_reports_that_its_reader_is_gone(run: Run) -> None:
    """How a child is noticed that closes its stdin: EPOLLERR, with nothing written and nothing to write."""

    async def main() -> None:
        watch = HangupWatch(asyncio.get_running_loop())
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        gone = asyncio.Event()
        watch.watch(writer, gone.set)
        await turns()
        assert not gone.is_set()
        os.write(writer, b"x" * 65536)  # a full pipe is no hang-up
        await turns()
        assert not gone.is_set()
        assert not hung_up(writer)
        os.close(reader)
        await gone.wait()
        assert hung_up(writer)
        os.close(writer)
        watch.close()

    run(main)


def test_a_tcp_reset_is_reported_and_a_tcp_close_is_not(run: Run) -> None:
    """Contract 6: on TCP a full close looks like a half-close until a write fails."""

    async def main() -> None:
        watch = HangupWatch(asyncio.get_running_loop())
        ours, theirs = tcp_pair()
        closed = asyncio.Event()
        watch.watch(ours.fileno(), closed.set)
        theirs.close()
        assert ours.recv(1) == b""
        await turns()
        assert not closed.is_set()
        ours.sendall(b"to nobody")
        await closed.wait()
        ours.close()

        ours, theirs = tcp_pair()
        reset = asyncio.Event()
        watch.watch(ours.fileno(), reset.set)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        await reset.wait()
        ours.close()
        watch.close()

    run(main)


def test_a_forgotten_descriptor_is_not_reported(run: Run) -> None:
    async def main() -> None:
        watch = HangupWatch(asyncio.get_running_loop())
        ours, theirs = unix_pair()
        gone = asyncio.Event()
        watch.watch(ours.fileno(), gone.set)
        fd = ours.fileno()
        watch.forget(fd)
        watch.forget(fd)
        theirs.close()
        await turns()
        ours.close()
        watch.forget(fd)
        assert not gone.is_set()
        watch.forget(12345)
        watch.close()

    run(main)


def test_forgetting_after_the_close_is_fine(run: Run) -> None:
    async def main() -> None:
        watch = HangupWatch(asyncio.get_running_loop())
        ours, theirs = unix_pair()
        fd = ours.fileno()
        watch.watch(fd, pytest.fail)
        ours.close()
        watch.forget(fd)
        theirs.close()
        await turns()
        watch.close()

    run(main)


def test_a_reused_descriptor_number_gets_its_own_callback_only(run: Run) -> None:
    """The old connection was closed without a word, and says `forget` when the number is a new one's."""

    async def main() -> None:
        watch = HangupWatch(asyncio.get_running_loop())
        old, old_peer = unix_pair()
        fd = old.fileno()
        gone: list[str] = []
        done = asyncio.Event()

        def old_gone() -> None:
            gone.append("old")

        def new_gone() -> None:
            gone.append("new")
            done.set()

        watch.watch(fd, old_gone)
        old.close()
        new, new_peer = unix_pair()
        if new.fileno() != fd:
            os.dup2(new.fileno(), fd)
            new.close()
            new = socket.socket(fileno=fd)
        watch.watch(fd, new_gone)
        watch.forget(fd, old_gone)
        old_peer.close()
        await turns()
        assert gone == []
        new_peer.close()
        await done.wait()
        assert gone == ["new"]
        new.close()
        watch.close()

    run(main)


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize("reused", [False, True])
def test_a_closed_descriptor_with_a_living_duplicate_neither_spins_nor_hits_a_stranger(
    run: Run, forgotten: bool, reused: bool
) -> None:
    """An epoll registration belongs to the open file: it outlives the number and cannot be removed by it."""

    async def main() -> None:
        watch = HangupWatch(asyncio.get_running_loop())
        old, old_peer = unix_pair()
        fd = old.fileno()
        duplicate = os.dup(fd)
        watch.watch(fd, lambda: pytest.fail("the old callback"))
        old.close()
        if forgotten:
            watch.forget(fd)
        stranger, stranger_peer = unix_pair()
        gone = asyncio.Event()
        if reused:
            if stranger.fileno() != fd:
                os.dup2(stranger.fileno(), fd)
                stranger.close()
                stranger = socket.socket(fileno=fd)
            watch.watch(fd, gone.set)
        else:
            watch.watch(stranger.fileno(), gone.set)
        old_peer.close()  # the ghost reports, and would for ever
        await turns()
        assert not gone.is_set()
        assert not select.select([watch._epoll], [], [], 0)[0]  # quiet: no busy loop
        stranger_peer.close()
        await gone.wait()
        stranger.close()
        os.close(duplicate)
        watch.close()

    run(main)


def test_a_callback_may_close_others_that_left_at_the_same_time(run: Run) -> None:
    """One event at a time: the number of a descriptor closed in a callback may be somebody else's at once."""

    async def main() -> None:
        watch = HangupWatch(asyncio.get_running_loop())
        pairs = [unix_pair() for _ in range(3)]
        fresh: list[tuple[socket.socket, socket.socket]] = []
        called: list[int] = []
        wrong: list[str] = []
        done = asyncio.Event()

        def callback(index: int) -> Callable[[], None]:
            def gone() -> None:
                called.append(index)
                # The first to be called closes all, and newcomers get their numbers.
                for ours, _ in pairs:
                    watch.forget(ours.fileno())
                    ours.close()
                for _ in pairs:
                    fresh.append(unix_pair())
                    watch.watch(fresh[-1][0].fileno(), lambda: wrong.append("a newcomer"))
                done.set()

            return gone

        for index, (ours, _) in enumerate(pairs):
            watch.watch(ours.fileno(), callback(index))
        for _, theirs in pairs:
            theirs.close()
        await done.wait()
        await turns()
        assert len(called) == 1
        assert wrong == []
        watch.close()
        for ours, theirs in fresh:
            ours.close()
            theirs.close()

    run(main)


def test_thousands_may_leave_at_once(run: Run) -> None:
    """Row 43: more than one turn of the loop handles."""

    async def main() -> None:
        watch = HangupWatch(asyncio.get_running_loop())
        left = 300
        done = asyncio.Event()

        def gone() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done.set()

        pairs = [unix_pair() for _ in range(left)]
        for ours, _ in pairs:
            watch.watch(ours.fileno(), gone)
        for _, theirs in pairs:
            theirs.close()
        await done.wait()
        await turns()
        assert left == 0
        for ours, _ in pairs:
            ours.close()
        watch.close()

    run(main)


def test_a_callback_that_fails_costs_nobody_else(run: Run) -> None:
    """Row 87: reported to the loop, and the others are told all the same."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        contexts: list[dict[str, object]] = []
        loop.set_exception_handler(lambda _, context: contexts.append(context))
        watch = HangupWatch(loop)
        (bad, bad_peer), (good, good_peer) = unix_pair(), unix_pair()
        error = ValueError("made to fail")

        def fail() -> None:
            raise error

        gone = asyncio.Event()
        watch.watch(bad.fileno(), fail)
        watch.watch(good.fileno(), gone.set)
        bad_peer.close()
        good_peer.close()
        await gone.wait()
        await turns()
        assert [context["exception"] for context in contexts] == [error]
        bad.close()
        good.close()
        watch.close()

    run(main)


def test_watching_twice_keeps_the_newer_callback(run: Run) -> None:
    async def main() -> None:
        watch = HangupWatch(asyncio.get_running_loop())
        ours, theirs = unix_pair()
        gone = asyncio.Event()
        watch.watch(ours.fileno(), lambda: pytest.fail("the older callback"))
        watch.watch(ours.fileno(), gone.set)
        theirs.close()
        await gone.wait()
        ours.close()
        watch.close()

    run(main)


def test_a_descriptor_that_is_not_open_is_an_error(run: Run) -> None:
    async def main() -> None:
        watch = HangupWatch(asyncio.get_running_loop())
        ours, theirs = unix_pair()
        fd = ours.fileno()
        ours.close()
        theirs.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            watch.watch(fd, lambda: None)
        watch.close()

    run(main)


def test_closing_in_a_callback_ends_all_callbacks(run: Run) -> None:
    async def main() -> None:
        watch = HangupWatch(asyncio.get_running_loop())
        pairs = [unix_pair(), unix_pair()]
        calls: list[int] = []

        def gone() -> None:
            calls.append(1)
            watch.close()

        for ours, theirs in pairs:
            watch.watch(ours.fileno(), gone)
            theirs.close()
        while not calls:
            await turns(1)
        await turns()
        assert calls == [1]
        watch.watch(pairs[0][0].fileno(), gone)
        watch.forget(pairs[0][0].fileno())
        await turns()
        assert calls == [1]
        for ours, _ in pairs:
            ours.close()

    run(main)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_close_is_idempotent_and_leaves_no_descriptor(new_loop: NewLoop) -> None:
    loop = new_loop()
    before = os.listdir("/proc/self/fd")
    watch = HangupWatch(loop)
    assert watch.active
    watch.close()
    watch.close()
    assert os.listdir("/proc/self/fd") == before
    late = HangupWatch(loop)
    loop.close()
    late.close()


def test_without_epoll_nothing_is_watched_and_hung_up_still_tells(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """The fallback of macOS, by switching epoll off."""

    async def main() -> None:
        # Only now: stock asyncio's own loop needs it when it is made.
        monkeypatch.delattr(select, "epoll")
        watch = HangupWatch(asyncio.get_running_loop())
        assert not watch.active
        ours, theirs = unix_pair()
        watch.watch(ours.fileno(), lambda: pytest.fail("watched without epoll"))
        assert not hung_up(ours.fileno())
        theirs.close()
        assert hung_up(ours.fileno())
        await turns()
        watch.forget(ours.fileno())
        ours.close()
        watch.close()
        monkeypatch.undo()

    run(main)


def test_hung_up_of_a_closed_descriptor_is_false() -> None:
    ours, theirs = unix_pair()
    fd = ours.fileno()
    ours.close()
    theirs.close()
    assert not hung_up(fd)
    assert not hung_up(-1)
