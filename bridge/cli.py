"""The command line: arguments to settings to an exit code. No other logic.

Imports nothing that costs time before it knows which command it is.
"""

from __future__ import annotations

import sys

from bridge.descriptors import fill_closed_descriptors
from bridge.errors import BridgeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bridge.config import Settings
    from bridge.headstart import HeadStart


def main(argv: list[str] | None = None) -> int:
    """Run a command; return its exit code."""
    fill_closed_descriptors()
    argv = sys.argv[1:] if argv is None else argv
    command = argv[0] if argv else ""
    if command == "connect":
        from bridge import connect

        return connect.main(argv[1:])
    if command == "demo-server":
        from bridge import demo_server

        return demo_server.main(argv[1:])
    if command == "demo":
        from bridge import demo

        return demo.main(argv[1:])
    if sys.platform == "win32":
        return _complain("Windows is not supported: run it under WSL", 2)
    from bridge.signals import EarlySignals

    signals = EarlySignals()
    from bridge.options import parse

    try:
        settings = parse(argv)
    except BridgeError as error:
        return _complain(str(error), error.exit_code)
    # The server is started before all that takes time to import: `_serve` does that.
    from bridge import warn
    from bridge.headstart import HeadStart

    warn.hold()
    start = HeadStart()
    try:
        with signals.held(start.close):
            start.make(settings)
        return _serve(settings, start)
    except BridgeError as error:
        return _complain(str(error), error.exit_code)
    finally:
        start.close()


def _complain(line: str, code: int) -> int:
    # It may quote what was typed: still one line, and nothing that a terminal obeys.
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    try:
        sys.stderr.write(f"mcp-bridge: {line}\n")
    except (OSError, ValueError, AttributeError):
        return code  # nobody listens; the exit code says it
    return code


def _serve(settings: Settings, start: HeadStart) -> int:
    import asyncio
    import faulthandler

    import uvloop

    from bridge import warn
    from bridge.hub import Hub
    from bridge.logs import setup_logging
    from bridge.signals import block_signals
    from bridge.tuning import raise_descriptor_limit, tune_allocator

    writer = setup_logging(level=settings.log_level, fmt=settings.log_format)
    warn.release()
    # For crashes of native code, and for systemd's watchdog, which ends a hanging process with SIGABRT.
    faulthandler.enable(2)
    tune_allocator()
    limit = raise_descriptor_limit()

    async def serve() -> int:
        try:
            return await Hub(settings, writer, start, limit).run()
        finally:
            block_signals()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve())
    except BridgeError as error:
        writer.write(f"mcp-bridge: {error}".encode(errors="replace"))
        return error.exit_code
    finally:
        writer.close()
