"""The options of a serving bridge: what each is called, means and defaults to, and how it is read.

Owns the command line's words. `config.py` owns the values.
"""

from __future__ import annotations

import argparse
import resource

from bridge import __version__
from bridge.address import parse_address
from bridge.config import MIB, Settings
from bridge.core.limits import Era, Limits
from bridge.errors import ConfigError
from bridge.peers import PeerPolicy, stands_for_strangers
from bridge.tuning import DESCRIPTORS_KEPT

TYPE_CHECKING = False  # it is read before the server is started: see bridge.headstart
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

USAGE = """\
mcp-bridge --listen ADDR [--listen ADDR ...] [options] -- COMMAND [ARG ...]
       mcp-bridge connect ADDR [--wait SECONDS]
       mcp-bridge demo
       mcp-bridge demo-server"""

DESCRIPTION = """\
Start a local MCP server that speaks stdio, and serve it to many clients over
Unix or TCP sockets, one JSON-RPC message a line.

commands:
  connect ADDR     a stdio MCP server that is the socket: what a host starts
  demo             show clients of both eras sharing one server
  demo-server      the stdio server of the demo (--era dual, modern, legacy)

ADDR is unix:/path, unix:@abstract-name, tcp:HOST:PORT (tcp:[::1]:PORT; port 0
picks a free one and logs it), systemd: (all sockets that systemd hands down) or
systemd:NAME. Several --listen work at once."""

EPILOG = """\
SIZE is in bytes, or with KiB, MiB, GiB. SECONDS may have a fraction.

signals: TERM or INT stops in order (a second one skips --drain), QUIT writes
the stacks to stderr and stops at once. HUP replaces the server and loses no
request: a new one takes over once it is ready; if that fails the old one stays.
exit status: 0 stopped as asked; 1 failed (address in use, server given up);
2 wrong usage; 126, 127 the command cannot be run, is not found."""


def parse(argv: list[str]) -> Settings:
    """Read the command line of a serving bridge.

    Raises:
        ConfigError: it cannot be used; one line says why.
        SystemExit: `--help` or `--version`, which have printed, or wrong usage.
    """
    parser = _parser()
    options_end = argv.index("--") if "--" in argv else len(argv)
    command = tuple(argv[options_end + 1 :])
    given = parser.parse_args(argv[:options_end])
    if not given.listen:
        raise ConfigError("--listen ADDR is missing, for example --listen unix:/tmp/mcp.sock; see --help")
    if not command or not command[0]:
        raise ConfigError("the command is missing: put it behind --, for example -- uvx mcp-server-git")
    if any("\0" in part for part in command):
        raise ConfigError("the server's command contains a NUL character")
    if given.spare > given.max_children:
        raise ConfigError(f"--spare {given.spare} is more than --max-children {given.max_children}")
    limits = Limits(
        max_request=given.max_request,
        max_message=given.max_message,
        max_depth=given.max_depth,
        max_in_flight=given.max_in_flight,
        max_subscriptions=given.max_subscriptions,
        restart_wait=given.restart_wait,
        probe_timeout=given.probe_timeout,
        start_timeout=given.start_timeout,
        linger=given.linger,
        swap_drain=given.swap_drain,
        replay_safe=given.replay == "safe",
        request_timeout=given.request_timeout,
        broadcast_logs=given.ambiguous_logs == "broadcast",
        era=None if given.era == "auto" else Era(given.era),
    )
    return Settings(
        listen=tuple(parse_address(text) for text in given.listen),
        command=command,
        admin=parse_address(given.admin) if given.admin else None,
        insecure=given.insecure,
        socket_mode=_socket_mode(given.socket_mode, given.socket_group),
        socket_group=given.socket_group,
        peers=PeerPolicy(frozenset(given.allow_uid), frozenset(given.allow_gid)),
        env=tuple(given.env),
        cwd=given.cwd,
        sharing=given.sharing,
        isolate_for=given.isolate_for,
        max_children=given.max_children,
        spare=given.spare,
        server_stderr=given.server_stderr,
        restart=given.restart,
        max_restarts=given.max_restarts,
        drain=given.drain,
        stop_grace=given.stop_grace,
        client_buffer=given.client_buffer,
        max_buffered=given.max_buffered,
        max_clients=given.max_clients,
        log_format=given.log_format,
        log_level=given.log_level,
        limits=limits,
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see mcp-bridge --help")


class _Group:
    """One section of the help: each option says its unit and, in brackets, its default."""

    def __init__(self, parser: argparse.ArgumentParser, title: str) -> None:
        self._group = parser.add_argument_group(title)

    def choice(self, name: str, text: str, *choices: str) -> None:
        """An option with the first choice as its default."""
        help = f"{text} [{choices[0]}]"
        self._group.add_argument(name, help=help, choices=choices, default=choices[0])

    def value(
        self,
        name: str,
        metavar: str,
        text: str,
        read: Callable[[str], object],
        default: object,
        shown: str = "",
    ) -> None:
        """An option with a value. `shown`: the default as people write it."""
        help = f"{text} [{shown or default}]"
        self._group.add_argument(name, metavar=metavar, help=help, type=_checked(read), default=default)

    def several(self, name: str, metavar: str, text: str, read: Callable[[str], object]) -> None:
        """An option that may be repeated."""
        self._group.add_argument(
            name, metavar=metavar, help=text, type=_checked(read), action="append", default=[]
        )

    def flag(self, name: str, text: str) -> None:
        """An option without a value, off unless given."""
        self._group.add_argument(name, help=text, action="store_true")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mcp-bridge",
        usage=USAGE,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    limits = Limits()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = max(1, hard - DESCRIPTORS_KEPT)
    system = "any number" if hard == resource.RLIM_INFINITY else f"about {most}"

    group = _Group(parser, "where to listen")
    group.several("--listen", "ADDR", "serve here; may be repeated", str)
    group.value(
        "--socket-mode",
        "MODE",
        "permissions of Unix sockets, octal",
        _mode,
        None,
        "0600; 0660 with --socket-group",
    )
    group.value("--socket-group", "GROUP", "the group of Unix sockets", _group, None, "the system's choice")
    group.several(
        "--allow-uid",
        "USER",
        "with this or the next, Unix sockets serve only our own user, root, and whom they name; "
        "name or number; may be repeated",
        _allowed_user,
    )
    group.several("--allow-gid", "GROUP", "the same for members of a group; may be repeated", _allowed_group)
    group.flag(
        "--insecure",
        "allow TCP addresses that other machines can reach: "
        "whoever connects acts with the server's authority",
    )
    group.value("--admin", "ADDR", "serve /healthz and /readyz over HTTP here", str, None, "off")

    group = _Group(parser, "the server")
    group.choice(
        "--era",
        "the era of MCP it is spoken to in. auto: each that a client needs and it serves; modern "
        "(2026-07-28) or legacy (2025-11-25 and earlier): that one alone, made ready at once",
        "auto",
        "modern",
        "legacy",
    )
    group.choice(
        "--sharing",
        "shared: all clients have one process; isolated: each has its own, and everything goes through, "
        "requests of the server to its client too; auto: who declares a capability of --isolate-for has "
        "its own",
        "shared",
        "isolated",
        "auto",
    )
    group.value(
        "--isolate-for",
        "NAMES",
        "with --sharing auto: capabilities of clients, with commas between",
        _names,
        ("sampling", "elicitation"),
        "sampling,elicitation",
    )
    group.value(
        "--max-children", "N", "processes of clients that have their own, spare ones included", _count, 32
    )
    group.value("--spare", "N", "processes started ahead for such clients, to hide a slow start", _number, 0)
    group.several("--env", "NAME=VALUE", "set a variable for it; may be repeated", _variable)
    group.value("--cwd", "DIR", "its working directory", str, None, "the bridge's")
    group.choice(
        "--server-stderr", "its stderr. relay: each line marked [server]", "relay", "inherit", "null"
    )
    group.choice("--restart", "start it again when it ends; never: the bridge ends too", "always", "never")
    group.choice(
        "--replay",
        "requests of a shared server that ends before it answers. off: they get -31001; safe: those that "
        "only read are sent once more to the next one",
        "off",
        "safe",
    )
    group.value("--max-restarts", "N", "failed starts in a row that end the bridge with status 1", _count, 5)
    group.value(
        "--restart-wait",
        "SECONDS",
        "requests wait so long for a server",
        _seconds,
        limits.restart_wait,
        "30",
    )
    group.value(
        "--probe-timeout",
        "SECONDS",
        "after so long without an answer to the modern era's probe, legacy clients go ahead",
        _seconds,
        limits.probe_timeout,
        "10",
    )
    group.value(
        "--start-timeout",
        "SECONDS",
        "a server that is silent so long after its start serves no era",
        _seconds,
        limits.start_timeout,
        "120",
    )

    group = _Group(parser, "limits")
    group.value("--max-clients", "N", f"connections at once; this system allows {system}", _count, 1024)
    group.value(
        "--max-in-flight",
        "N",
        "requests of one client at the server; more wait",
        _count,
        limits.max_in_flight,
    )
    group.value(
        "--max-subscriptions",
        "N",
        f"of one client; all clients together have {limits.max_subscriptions_all}",
        _count,
        limits.max_subscriptions,
    )
    group.value(
        "--max-request",
        "SIZE",
        "longest line to the server; a longer one ends servers on the TypeScript SDK",
        _size,
        limits.max_request,
        "10MiB less 1",
    )
    group.value("--max-message", "SIZE", "longest line from the server", _size, limits.max_message, "64MiB")
    group.value(
        "--max-depth", "N", "levels of nesting in a client's message, at most 512", _depth, limits.max_depth
    )
    group.value(
        "--client-buffer",
        "SIZE",
        "unread output at which a client is cut; one message always fits",
        _size,
        16 * MIB,
        "16MiB",
    )
    group.value(
        "--max-buffered",
        "SIZE",
        "all buffers together; above it the client that holds most is cut",
        _size,
        256 * MIB,
        "256MiB",
    )
    group.value(
        "--request-timeout",
        "SECONDS",
        "time the server has for a request; then it is cancelled",
        _seconds_or_off,
        None,
        "off",
    )
    group.value(
        "--linger",
        "SECONDS",
        "a half-closed client is answered so long",
        _seconds,
        limits.linger,
        "60",
    )

    group = _Group(parser, "stopping")
    group.value("--drain", "SECONDS", "requests at the server may go on so long", _seconds, 5.0, "5")
    group.value(
        "--stop-grace",
        "SECONDS",
        "time the server has from end of input to SIGTERM",
        _seconds,
        1.0,
        "1",
    )
    group.value(
        "--swap-drain",
        "SECONDS",
        "at a SIGHUP, the old server may go on answering so long",
        _seconds,
        limits.swap_drain,
        "600",
    )

    group = _Group(parser, "logs, which go to stderr")
    group.choice(
        "--ambiguous-logs",
        "log notifications of the server that several clients could have asked for: into the "
        "bridge's log, or to each of them, which is a leak",
        "log",
        "broadcast",
    )
    group.choice("--log-format", "text, or JSON lines", "text", "json")
    group.choice("--log-level", "the least that is logged", "info", "debug", "warning", "error")

    more = parser.add_argument_group("help")
    version = f"mcp-bridge {__version__}"
    more.add_argument("--version", action="version", version=version, help="print the version")
    more.add_argument("-h", "--help", action="help", help="print this")
    return parser


def _checked(read: Callable[[str], object]) -> Callable[[str], object]:
    """What argparse calls: a ValueError's own words become the message."""

    def convert(text: str) -> object:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


UNITS = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def _size(text: str) -> int:
    unit = text[-3:]
    number = text[:-3] if unit in UNITS else text
    if not (number.isascii() and number.isdigit()) or len(number) > 15 or int(number) == 0:
        raise ValueError(f"{text!r} is no size: use a number of bytes, or one with KiB, MiB or GiB")
    return int(number) * UNITS.get(unit, 1)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) == 0:
        raise ValueError(f"{text!r} is no number from 1 on")
    return int(text)


def _number(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not all(name.isidentifier() for name in names):
        raise ValueError(f"{text!r} are no names of capabilities: write them like sampling,roots")
    return names


def _depth(text: str) -> int:
    value = _count(text)
    if value > 512:  # the parser's own limit begins at about 900, depending on the interpreter
        raise ValueError(f"{text!r} is deeper than 512, the most that can be parsed everywhere")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10**8:
        raise ValueError(f"{text!r} is no number of seconds")
    return value


def _seconds_or_off(text: str) -> float | None:
    return None if text == "off" else _seconds(text)


def _mode(text: str) -> int:
    try:
        value = int(text, 8)
    except ValueError:
        value = -1
    if not 0 <= value <= 0o777:
        raise ValueError(f"{text!r} is no octal mode such as 0660")
    return value


def _socket_mode(mode: int | None, group: int | None) -> int:
    """A group that is named is meant to have access."""
    if mode is not None:
        return mode
    return 0o600 if group is None else 0o660


def _allowed_user(text: str) -> int:
    import pwd

    try:
        number = _id(text, "uid") if text.isdigit() else pwd.getpwnam(text).pw_uid
    except KeyError:
        raise ValueError(f"there is no user {text!r} here; use a number") from None
    return _no_strangers(number, "uid")


def _allowed_group(text: str) -> int:
    return _no_strangers(_group(text), "gid")


def _no_strangers(number: int, kind: str) -> int:
    if stands_for_strangers(number, kind):
        raise ValueError(f"{kind} {number} stands for everybody from outside this container's user namespace")
    return number


def _group(text: str) -> int:
    import grp

    try:
        return _id(text, "gid") if text.isdigit() else grp.getgrnam(text).gr_gid
    except KeyError:
        raise ValueError(f"there is no group {text!r} here; use a number") from None


def _id(text: str, kind: str) -> int:
    # The last one means "no change" to the system.
    if not text.isascii() or len(text) > 10 or int(text) >= 2**32 - 1:
        raise ValueError(f"{text!r} is no {kind}")
    return int(text)


def _variable(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator or "\0" in text:
        raise ValueError("use NAME=VALUE")
    return name, value
