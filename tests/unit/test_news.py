"""What the log says of what the core noticed."""

from __future__ import annotations

import logging

import pytest

from bridge.core.outbox import Key
from bridge.core.tables import NoticeKind
from bridge.news import News

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (
            NoticeKind.BAD_LINE,
            b'batches are not supported\n[{"method":"tools/call","params":{"password":"hunter2"}}]',
        ),
        (NoticeKind.BAD_LINE, b'the line is not valid JSON\nword":"hunter2"}}'),
        (NoticeKind.NOISE, b'{"jsonrpc":"2.0","id":1,"result":{"password":"hunter2"'),
        (NoticeKind.NOISE, b' \xef\xbb\xbf\t[{"password":"hunter2"}'),
    ],
)
def test_what_may_be_of_a_message_is_logged_at_debug_alone(
    kind: NoticeKind, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Hazard: a request that is refused for a trifle has its secrets in a log that many may read."""
    caplog.set_level(logging.INFO, "bridge")
    News().tell(kind, Key(1), line, 0.0)
    assert kind.value in caplog.text
    assert SECRET not in caplog.text
    caplog.set_level(logging.DEBUG, "bridge")
    News().tell(kind, Key(1), line, 0.0)
    assert SECRET in caplog.text


def test_what_a_server_prints_beside_its_messages_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It is the first thing to look at when a server does not work."""
    caplog.set_level(logging.INFO, "bridge")
    News().tell(NoticeKind.NOISE, Key(1), b"Error: no such database\r", 0.0)
    assert "Error: no such database" in caplog.text
