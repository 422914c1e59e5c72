"""The exceptions of this package, each with the exit code it leads to.

The message of every one is a single line that a user can act on: what is wrong and what to do about it.
This module imports nothing, so that the `connect` command, which a host starts for each session, stays cheap.
"""

from __future__ import annotations


class BridgeError(Exception):
    """Something the user has to know; `str(error)` is one clear line.

    Attributes:
        exit_code: what the command exits with when this error ends it.
    """

    exit_code: int = 1


class ConfigError(BridgeError):
    """An option, an address or a configuration file is wrong: exit 2."""

    exit_code = 2


class ListenError(BridgeError):
    """A listening socket cannot be opened: exit 1."""


class ChildError(BridgeError):
    """The server process failed: exit 1."""


class SpawnError(ChildError):
    """The server's command could not be started.

    Args:
        message: one line that names the command and the reason.
        exit_code: 127 if the command was not found, 126 if it cannot be run, as shells have it.
    """

    def __init__(self, message: str, exit_code: int = 126) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class PeerError(BridgeError):
    """Input of a peer that is answered with an error.

    Args:
        message: what is wrong with the input, without quoting it.
        code: the JSON-RPC error code to answer with.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
