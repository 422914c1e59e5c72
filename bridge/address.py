"""The addresses that name sockets on the command line: parsed, checked, printed.

Owns the text form of an address and nothing else: no name is resolved and no socket opened here. What a
command does not support (`connect` has no `tls:`) is refused by that command, not by the parser.

| text | meaning |
|---|---|
| `unix:/run/mcp.sock`, `unix:mcp.sock` | a Unix socket in the file system |
| `unix:@name` | an abstract Unix socket (Linux) |
| `tcp:127.0.0.1:8080`, `tcp:[::1]:8080`, `tcp:localhost:0` | TCP; port 0 lets the system choose |
| `tls:mcp.example.com:8443` | TLS over TCP |
| `systemd:`, `systemd:NAME` | sockets inherited from systemd: all of them, or those of one name |
"""

from __future__ import annotations

import os

# The C half of `socket`: the whole module costs a third of the `connect` command's start (it builds enums).
from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton

from bridge.errors import ConfigError

TYPE_CHECKING = False  # `typing` itself is too slow to import for the connect command
if TYPE_CHECKING:
    from typing import Literal, NoReturn

    Kind = Literal["unix", "abstract", "tcp", "tls", "systemd"]

# sun_path has 108 bytes on Linux, and the NUL that marks an abstract name takes the first.
_MAX_ABSTRACT_BYTES = 107
# sd_listen_fds(3): longer names are not passed on by systemd.
_MAX_SYSTEMD_NAME = 255
# RFC 1035, 2.3.4: a name is 255 bytes on the wire, which leaves 253 characters; a label is 63.
_MAX_HOST = 253
_MAX_LABEL = 63
_MAX_PORT = 65535
# Enough to recognise what was typed; the rest of a pasted kilobyte only hides the reason.
_SHOWN_CHARACTERS = 80

_HOST_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")


class Address:
    """One address. Immutable, hashable, equal to another if all parts are.

    The constructor trusts its caller; text from outside goes through `parse_address`.

    Attributes:
        kind: "unix", "abstract", "tcp", "tls" or "systemd".
        path: the path (unix), the name without `@` (abstract), the name or "" for all (systemd), else "".
        host: for tcp and tls the lower-case host name or IP address, IPv6 without brackets; else "".
        port: for tcp and tls 0 to 65535; else 0.
    """

    __slots__ = ("host", "kind", "path", "port")

    kind: Kind
    path: str
    host: str
    port: int

    def __init__(self, kind: Kind, *, path: str = "", host: str = "", port: int = 0) -> None:
        set_once = object.__setattr__
        set_once(self, "kind", kind)
        set_once(self, "path", path)
        set_once(self, "host", host)
        set_once(self, "port", port)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"an Address cannot be changed: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"an Address cannot be changed: {name}")

    def __reduce__(self) -> tuple[object, tuple[str]]:
        # The default of copy and pickle sets attributes one by one, which __setattr__ refuses.
        return parse_address, (str(self),)

    def _parts(self) -> tuple[str, str, str, int]:
        return (self.kind, self.path, self.host, self.port)

    def __eq__(self, other: object) -> bool:
        return self._parts() == other._parts() if isinstance(other, Address) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._parts())

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    def __str__(self) -> str:
        """The canonical text: `parse_address(str(a)) == a`."""
        if self.kind == "unix":
            # A file whose name starts with "@" would read as an abstract name.
            return f"unix:./{self.path}" if self.path.startswith("@") else f"unix:{self.path}"
        if self.kind == "abstract":
            return f"unix:@{self.path}"
        if self.kind == "systemd":
            return f"systemd:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.kind}:{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read an address as it is written on the command line or in a configuration file.

    Args:
        text: one of the forms in this module's table. `unix:///path` is taken for `unix:/path`.

    Raises:
        ConfigError: it is none of these; the message is one line with the reason and a right example.
    """
    scheme, colon, rest = text.partition(":")
    if not text:
        _refuse(text, "is empty", "unix:/run/mcp.sock")
    if "\0" in text:
        _refuse(text, "contains a NUL character", "unix:/run/mcp.sock")
    if scheme == "unix" and colon:
        return _parse_unix(text, rest)
    if scheme == "tcp" and colon:
        host, port = _parse_host_port(text, scheme, rest)
        return Address("tcp", host=host, port=port)
    if scheme == "tls" and colon:
        host, port = _parse_host_port(text, scheme, rest)
        return Address("tls", host=host, port=port)
    if scheme == "systemd" and colon:
        return _parse_systemd(text, rest)
    return _refuse_scheme(text, scheme, rest)


def is_loopback(address: Address) -> bool:
    """Whether only this machine can reach the address.

    True for Unix sockets, and for TCP and TLS on 127.0.0.0/8, ::1 and the name `localhost` (RFC 6761, 6.3).
    No name is resolved: every other name, and `systemd:`, is False.
    """
    if address.kind in ("unix", "abstract"):
        return True
    host = address.host
    if ":" in host:
        try:
            packed = inet_pton(AF_INET6, host.partition("%")[0])
        except OSError:
            return False
        # An IPv4 address may be written as ::ffff:127.0.0.1; it binds to the IPv4 one.
        return packed == b"\0" * 15 + b"\1" or packed[:13] == b"\0" * 10 + b"\xff\xff\x7f"
    try:
        return inet_pton(AF_INET, host)[0] == 127
    except OSError:
        return host in ("localhost", "localhost.")


def _refuse(text: str, reason: str, example: str) -> NoReturn:
    # repr() keeps control characters and undecodable bytes out of the terminal, and the message on
    # one line.
    shown = repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")
    raise ConfigError(f"address {shown} {reason}; example: {example}")


def _refuse_scheme(text: str, scheme: str, rest: str) -> NoReturn:
    if text[0] in "/.~":
        _refuse(text, "has no scheme", _safe_example(f"unix:{text}", "unix:/run/mcp.sock"))
    if text[0] == "@":
        _refuse(text, "has no scheme", _safe_example(f"unix:{text}", "unix:@mcp"))
    if text[0] == "[" or rest.isdigit() or text.isdigit():
        guess = f"tcp:127.0.0.1:{text}" if text.isdigit() else f"tcp:{text}"
        _refuse(text, "has no scheme", _safe_example(guess, "tcp:127.0.0.1:8080"))
    known = "unix:, tcp:, tls: or systemd:"
    lower = scheme.lower()
    if scheme != lower and lower in ("unix", "tcp", "tls", "systemd"):
        _refuse(text, "has its scheme in capitals", _safe_example(f"{lower}:{rest}", "unix:/run/mcp.sock"))
    _refuse(text, f"does not start with {known}", "unix:/run/mcp.sock or tcp:127.0.0.1:8080")


def _safe_example(guess: str, fallback: str) -> str:
    """`guess` if it is an address that can be shown as it is, else `fallback`."""
    if len(guess) > _SHOWN_CHARACTERS or not (guess.isascii() and guess.isprintable()):
        return fallback
    try:
        parse_address(guess)
    except ConfigError:
        return fallback
    return guess


def _parse_unix(text: str, rest: str) -> Address:
    example = "unix:/run/mcp.sock"
    try:
        size = len(os.fsencode(rest))
    except UnicodeEncodeError:
        # Half a surrogate pair, which only a configuration file can contain: no file name is spelled so.
        _refuse(text, "contains characters that no file name can hold", example)
    if rest.startswith("@"):
        if len(rest) == 1:
            _refuse(text, "has no name after the @", "unix:@mcp")
        if size - 1 > _MAX_ABSTRACT_BYTES:
            reason = f"has an abstract name of {size - 1} bytes, the limit is {_MAX_ABSTRACT_BYTES}"
            _refuse(text, reason, "unix:@mcp")
        return Address("abstract", path=rest[1:])
    if not rest:
        _refuse(text, "has no path", example)
    if rest.startswith("//"):
        # The URL spelling. To Linux any number of leading slashes is one.
        rest = "/" + rest.lstrip("/")
    if rest.rpartition("/")[2] in ("", ".", ".."):
        _refuse(text, "names a directory", example)
    return Address("unix", path=rest)


def _parse_systemd(text: str, name: str) -> Address:
    if len(name) > _MAX_SYSTEMD_NAME:
        _refuse(text, f"has a name over {_MAX_SYSTEMD_NAME} characters", "systemd:mcp")
    # sd_listen_fds(3): ASCII without control characters and ":", which separates the names.
    if not (name.isascii() and name.isprintable()) or ":" in name:
        _refuse(text, "has a name with a colon, a control or a non-ASCII character", "systemd:mcp")
    return Address("systemd", path=name)


def _parse_host_port(text: str, scheme: str, rest: str) -> tuple[str, int]:
    example = f"{scheme}:127.0.0.1:8080"
    if rest.startswith("//"):
        _refuse(text, "has // after the scheme", _safe_example(f"{scheme}:{rest.strip('/')}", example))
    if rest.startswith("["):
        inside, bracket, after = rest[1:].partition("]")
        example = f"{scheme}:[::1]:8080"
        if not bracket:
            _refuse(text, "has no ] after the IPv6 address", example)
        if after and not after.startswith(":"):
            _refuse(text, "has something other than :PORT after the ]", example)
        return _ipv6(text, inside, example), _port(text, after[1:], example)
    host, _, port = rest.rpartition(":")
    if ":" in host or rest.startswith("::"):
        _refuse(text, "has more than one colon; an IPv6 address stands in brackets", f"{scheme}:[::1]:8080")
    if ":" not in rest:
        _refuse(
            text, "has no port" if rest else "has no host and port", _safe_example(f"{text}:8080", example)
        )
    return _host(text, host, example), _port(text, port, example)


def _port(text: str, port: str, example: str) -> int:
    if not port:
        _refuse(text, "has no port", example)
    if not (port.isascii() and port.isdigit()):
        _refuse(text, "has a port that is not a number", example)
    # The length first: int() of thousands of digits raises an error of its own.
    if len(port) > 5 or int(port) > _MAX_PORT:
        _refuse(text, f"has a port over {_MAX_PORT}", example)
    return int(port)


def _ipv6(text: str, inside: str, example: str) -> str:
    numeric, percent, scope = inside.partition("%")
    try:
        # Canonical, so that two spellings of one address compare equal.
        host = inet_ntop(AF_INET6, inet_pton(AF_INET6, numeric))
    except (OSError, UnicodeError):
        _refuse(text, "has no IPv6 address between the brackets", example)
    if percent and not (
        scope.isascii() and scope.replace(".", "").replace("-", "").replace("_", "").isalnum()
    ):
        _refuse(text, "has no interface name after the %", f"{example.partition('[')[0]}[fe80::1%eth0]:8080")
    return host + percent + scope


def _host(text: str, host: str, example: str) -> str:
    host = host.lower()
    if not host:
        _refuse(text, "has no host", example)
    if host == "*":
        _refuse(
            text, "has * as host; every address is 0.0.0.0 or [::]", example.replace("127.0.0.1", "0.0.0.0")
        )
    if not _HOST_CHARACTERS.issuperset(host):
        _refuse(text, "has a host that is neither a name nor an IP address", example)
    labels = host.removesuffix(".").split(".")
    if len(host) > _MAX_HOST or any(not 0 < len(label) <= _MAX_LABEL for label in labels):
        _refuse(text, "has a host name with an empty or over-long part", example)
    last = labels[-1]
    if last.isdigit() or last.startswith("0x"):
        # The C library reads 127.1, 0x7f.1 and 2130706433 as addresses too. Whoever checks for loopback would
        # have to know these spellings, so only the plain one is taken.
        try:
            inet_pton(AF_INET, host)
        except OSError:
            _refuse(text, "has an IPv4 address that is not four numbers from 0 to 255", example)
    return host
