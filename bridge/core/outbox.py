"""Where the core puts what is to be written, until the end of a call.

Owns the order of the output. One call of the core gives each destination at most
one piece of bytes to write, however many messages it is for.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NewType, TypeAlias

from msgspec import Raw

from bridge.core.codec import Codec
from bridge.core.jsonrpc import Call, OddMessage, encoder

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

    __slots__ = ("_controls", "_run", "codec", "touched")

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.touched: list[Lane] = []
        """Lanes that have something in `out`: who appends a first item without `put` enters the lane here."""
        self._controls: list[Output] = []
        self._run: tuple[list[Lane], list[Raw]] | None = None
        """What all of many are to be told, before whatever stands in `out` by now."""

    def put(self, lane: Lane, item: Call | Raw) -> None:
        """Send a message, or a line that is ready (without its newline). Behind a close it is nobody's."""
        if lane.closing:
            return
        if self._run is not None:
            self._end_run()
        if not lane.out:
            self.touched.append(lane)
        if type(item) is OddMessage:
            lane.odd = True
        lane.out.append(item)

    def put_to_all(self, lanes: Iterable[Lane], line: Raw) -> int:
        """Send one line that is ready to many; return to how many, without those behind a close."""
        told = [lane for lane in lanes if not lane.closing]
        touched = self.touched
        if not touched and (self._run is None or self._run[0] == told):
            # Nothing else is on its way, so what many are told need not be entered for each of them.
            if self._run is None:
                self._run = told, []
            self._run[1].append(line)
            return len(told)
        if self._run is not None:
            self._end_run()
        for lane in told:
            out = lane.out
            if not out:
                touched.append(lane)
            out.append(line)
        return len(told)

    def _end_run(self) -> None:
        """Enter what many are told for each of them: something of their own is to follow."""
        assert self._run is not None
        lanes, lines = self._run
        self._run = None
        for lane in lanes:
            if not lane.out:
                self.touched.append(lane)
            lane.out[:0] = lines  # before what was entered by others, without `put`

    def control(self, lane: Lane, what: Control) -> None:
        """Have the shell stop or go on reading from a client, now or in a while."""
        self._controls.append((lane.key, what))

    def close(self, lane: Lane) -> None:
        """Close a destination behind what was put for it so far."""
        if not lane.closing:
            if self._run is not None:
                self._end_run()
            if not lane.out:
                self.touched.append(lane)
            lane.closing = True

    def flush(self) -> list[Output]:
        """What was collected since the last call, as it is to be written."""
        touched = self.touched
        outputs: list[Output] = []
        if self._run is not None:
            if touched:
                self._end_run()
            else:
                lanes, lines = self._run
                self._run = None
                line = encoder.encode_lines(lines)
                outputs = [(told.key, line) for told in lanes]
        encode_lines = encoder.encode_lines
        common: list[Call | Raw] | None = None
        common_piece = b""
        for lane in touched:
            out = lane.out
            if out:
                if lane.odd:
                    piece = self.codec.encode_lines(out)
                    lane.odd = False
                elif type(out[0]) is not Raw:
                    piece = encode_lines(out)
                elif out == common:  # what is fanned out is encoded once, and written as one object
                    piece = common_piece
                else:
                    piece = common_piece = encode_lines(out)
                    common = out
                outputs.append((lane.key, piece))
                lane.out = []
            if lane.closing:
                outputs.append((lane.key, b""))
        touched.clear()
        if self._controls:
            outputs += self._controls
            self._controls.clear()
        return outputs
