"""Where the core puts what is to be written, until the end of a call.

Owns the order of the output. One call of the core gives each destination at most
one piece of bytes to write, however many messages it is for.
"""

from __future__ import annotations

import enum
from typing import NewType, TypeAlias

from msgspec import Raw

from bridge.core.jsonrpc import Call, Codec, OddMessage, encoder

Key = NewType("Key", int)
"""Names one client connection or one child. Never used again while the bridge lives."""


class Control(enum.Enum):
    """What a shell is to do with a destination, besides writing."""

    PAUSE = "stop reading"
    RESUME = "read on"
    TURN = "read on only behind `client_turn`, which is to be called when others have had their turn"


Output: TypeAlias = "tuple[Key, bytes | Control]"
"""A destination and the bytes to write to it. `b""` closes it once what is queued has gone."""


class Lane:
    """One destination: its key, and the messages on the way to it."""

    __slots__ = ("closing", "key", "odd", "out")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.out: list[Call | Raw] = []
        self.odd = False
        self.closing = False
        """Nothing may follow what is in `out`; then the destination is closed."""


class Outbox:
    """Collects messages for each lane and gives them out as bytes, in order."""

    __slots__ = ("_controls", "_touched", "codec")

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self._touched: list[Lane] = []
        self._controls: list[Output] = []

    def put(self, lane: Lane, item: Call | Raw) -> None:
        """Send a message, or a line that is ready (without its newline). Behind a close it is nobody's."""
        if lane.closing:
            return
        if not lane.out:
            self._touched.append(lane)
        if type(item) is OddMessage:
            lane.odd = True
        lane.out.append(item)

    def touch(self, lane: Lane) -> list[Call | Raw]:
        """Where messages for an open lane may be appended until the call of the core ends.

        For many at once: `put` without its checks. Only a `Call` or a `Message` as the fast
        path decoded it, or a line that is ready.
        """
        if not lane.out:
            self._touched.append(lane)
        return lane.out

    def control(self, lane: Lane, what: Control) -> None:
        """Have the shell stop or go on reading from a client, now or in a while."""
        self._controls.append((lane.key, what))

    def close(self, lane: Lane) -> None:
        """Close a destination behind what was put for it so far."""
        if not lane.closing:
            if not lane.out:
                self._touched.append(lane)
            lane.closing = True

    def flush(self) -> list[Output]:
        """What was collected since the last call, as it is to be written."""
        outputs: list[Output] = []
        for lane in self._touched:
            out = lane.out
            if out:
                if lane.odd:
                    outputs.append((lane.key, self.codec.encode_lines(out)))
                    lane.odd = False
                else:
                    outputs.append((lane.key, encoder.encode_lines(out)))
                out.clear()
            if lane.closing:
                outputs.append((lane.key, b""))
        self._touched.clear()
        if self._controls:
            outputs += self._controls
            self._controls.clear()
        return outputs
