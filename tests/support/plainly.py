"""Whole lines by the plain decoders alone, as the quick paths of the core use them."""

from __future__ import annotations

from bridge.core.codec import FAULTS, Codec, are_plain, decode_message, lines_of
from bridge.core.framing import Block
from bridge.core.jsonrpc import Message, Refusal


def decode_block(codec: Codec, block: Block) -> list[Message] | None:
    """Decode whole lines; None if a plain decoder refuses any of them."""
    if not are_plain(block):
        return None
    try:
        messages = [(line, decode_message(line)) for line in lines_of(block)]
    except FAULTS:
        return None
    short = codec.short if b"[" in block else codec.short_flat
    if any(len(line) > short and not codec.is_bounded(line, message.id) for line, message in messages):
        return None
    return [message for _, message in messages]


def decode_lines(codec: Codec, block: Block) -> list[Message | Refusal | None]:
    """Decode whole lines, each in the quickest way that there is for it."""
    decode = codec.decode_plain_line if are_plain(block) else codec.decode_line
    return [decode(line) for line in lines_of(block)]
