"""Tasks of clients that share a legacy session (section 7, "Legacy, shared"): each is its maker's alone."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core import tasks
from tests.unit.core.scenario import (
    CLOSE,
    Json,
    Scenario,
    cancelled,
    error,
    left,
    legacy,
    notification,
    progress,
    refusal,
    result,
)
from tests.unit.core.sessions import log, session, set_level

RELATED = "io.modelcontextprotocol/related-task"


def ask(id: object, **more: Any) -> Json:
    """A request that may become a task."""
    return legacy(id, "tools/call", task={"ttl": 60000}, **more)


def state(name: object, status: str = "working") -> Json:
    return {"taskId": name, "status": status, "ttl": None, "createdAt": "a", "lastUpdatedAt": "a"}


def made(id: object, name: object, status: str = "working") -> Json:
    return result(id, {"task": state(name, status)})


def about(id: object, what: str, name: object) -> Json:
    return legacy(id, f"tasks/{what}", taskId=name)


def status(name: object, what: str = "working") -> Json:
    return notification("notifications/tasks/status", **state(name, what))


def related(name: object) -> Json:
    return {"_meta": {RELATED: {"taskId": name}}}


def with_tasks(**limits: Any) -> Scenario:
    """A has made the task `a`, and B the task `b`; upstream ids go on with 4."""
    s = session(**limits)
    for number, name in enumerate("AB"):
        s.client(name, ask(1)).expect(server=ask(2 + number))
        s.server(made(2 + number, name.lower())).expect(**{name: made(1, name.lower())})
    return s


@pytest.mark.parametrize("what", ["get", "result", "cancel"])
def test_a_task_is_known_to_its_maker_alone(what: str) -> None:
    s = with_tasks()
    s.client("A", about(2, what, "a")).expect(server=about(4, what, "a"))
    s.server(result(4, state("a"))).expect(A=result(2, state("a")))
    s.client("A", about(3, what, "b")).expect(A=refusal(-32602, "unknown_task", id=3))
    s.client("B", about(3, what, "none")).expect(B=refusal(-32602, "unknown_task", id=3))


def test_the_result_of_a_task_is_whatever_its_request_would_have_had() -> None:
    s = with_tasks()
    s.client("A", about(2, "result", "a"), about(3, "result", "a"))
    s.server(result(4, {"content": []}), error(5)).expect(A=[result(2, {"content": []}), error(3)])


@pytest.mark.parametrize("params", [{}, {"taskId": 5}, [], None])
def test_a_request_that_names_no_task_is_refused(params: object) -> None:
    s = with_tasks()
    message = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": params}
    s.client("A", message).expect(A=refusal(-32602, "unknown_task", id=1))


def test_another_client_is_told_the_same_of_a_task_that_is_and_of_one_that_is_not() -> None:
    s = with_tasks()
    one = s.client("A", about(1, "get", "b")).bytes("A")
    assert one == s.client("A", about(1, "get", "none")).bytes("A")


def test_each_page_of_the_list_shows_a_client_its_own() -> None:
    s = with_tasks()
    s.client("A", legacy(1, "tasks/list")).expect(server=legacy(4, "tasks/list"))
    page = {"tasks": [state("x"), state("b"), state("a")], "nextCursor": "2", "_meta": {"n": 1.0}}
    s.server(result(4, page)).expect(A=result(1, {**page, "tasks": [state("a")]}))
    s.client("A", legacy(2, "tasks/list", cursor="2")).expect(server=legacy(5, "tasks/list", cursor="2"))
    s.server(result(5, {"tasks": [state("b")]})).expect(A=result(2, {"tasks": []}))
    s.client("B", legacy(3, "tasks/list"))
    s.server(error(6)).expect(B=error(3))


@pytest.mark.parametrize("page", [{}, [], {"tasks": 5}, {"tasks": [5]}, {"tasks": [{"taskId": 1}]}, 5])
def test_a_list_that_cannot_be_read_is_shown_to_nobody(page: object) -> None:
    s = with_tasks()
    s.client("A", legacy(1, "tasks/list"))
    s.server(result(4, page)).expect(A=refusal(-31008, "invalid_response", id=1, delivered=True))


def test_a_list_with_an_unpaired_surrogate_is_filtered_like_any_other() -> None:
    s = with_tasks()
    s.client("A", legacy(1, "tasks/list"))
    line = (
        rb'{"jsonrpc":"2.0","id":4,"result":{"tasks":[{"taskId":"a","x":"\ud83d"},{"taskId":"b"}]}}' + b"\n"
    )
    told = s.server(line).bytes("A")
    assert told == rb'{"jsonrpc":"2.0","id":1,"result":{"tasks":[{"taskId":"a","x":"\ud83d"}]}}' + b"\n"


def test_a_list_of_a_server_without_tasks_is_its_own_affair() -> None:
    s = session("A", capabilities={})
    s.client("A", ask(1)).expect(server=ask(2))
    s.server(made(2, "a")).expect(A=made(1, "a"))
    s.client("A", about(2, "get", "a")).expect(A=refusal(-32602, "unknown_task", id=2))
    s.client("A", legacy(3, "tasks/list")).expect(server=legacy(3, "tasks/list"))
    s.server(result(3, {"tasks": [state("a")]})).expect(A=result(3, {"tasks": []}))
    s.server(status("a")).expect()


# -- notifications


def test_a_tasks_status_is_told_to_its_maker_alone() -> None:
    s = with_tasks()
    s.server(status("a"), status("b", "completed"), status("c")).expect(
        A=status("a"), B=status("b", "completed")
    )
    s.server(notification("notifications/tasks/status", taskId="a", status=5)).expect(
        A=notification("notifications/tasks/status", taskId="a", status=5)
    )
    s.server(notification("notifications/tasks/status", taskId="a")).expect(
        A=notification("notifications/tasks/status", taskId="a")
    )


@pytest.mark.parametrize(
    "method", ["notifications/tools/list_changed", "notifications/x", "notifications/resources/updated"]
)
def test_whatever_is_related_to_a_task_is_its_makers_alone(method: str) -> None:
    s = with_tasks()
    s.server(notification(method, **related("b"))).expect(B=notification(method, **related("b")))
    s.server(notification(method, **related("c")), notification(method, _meta={RELATED: 5})).expect()


def test_a_log_message_of_a_task_is_told_to_its_maker_if_its_level_admits_it() -> None:
    s = with_tasks()
    s.client("A", set_level(2, "debug"))
    s.server(result(4))
    s.client("B", set_level(2, "error")).expect(B=result(2))
    s.server(log("info", **related("a")), log("info", **related("b"))).expect(A=log("info", **related("a")))
    s.server(log("error", **related("b"))).expect(B=log("error", **related("b")))


def test_progress_goes_on_behind_the_response_until_the_task_is_over() -> None:
    """Spec: 2025-11-25 basic/utilities/tasks: the token stays valid as long as the task does."""
    s = session()
    s.client("A", ask(1, _meta={"progressToken": "t"})).expect(server=ask(2, _meta={"progressToken": 2}))
    s.server(progress(2)).expect(A=progress("t"))
    s.server(made(2, "a"), progress(2, **related("a"))).expect(
        A=[made(1, "a"), progress("t", **related("a"))]
    )
    s.server(status("a", "completed"), progress(2)).expect(A=status("a", "completed"))
    s.client("B", ask(1))
    s.server(made(3, "b"), progress(3)).expect(B=made(1, "b"))


def test_a_task_that_is_over_at_once_has_no_progress_behind_its_response() -> None:
    s = session("A")
    s.client("A", ask(1, _meta={"progressToken": "t"}))
    s.server(made(2, "a", "failed"), progress(2)).expect(A=made(1, "a", "failed"))


# -- making


@pytest.mark.parametrize("said", [{}, {"content": []}, {"task": 5}, {"task": {"taskId": 5}}, 5])
def test_a_request_that_was_answered_at_once_makes_no_task(said: object) -> None:
    s = session("A")
    s.client("A", ask(1))
    s.server(result(2, said)).expect(A=result(1, said))
    assert s.sizes == {"clients": 1, "sessions": 1}


def test_a_refused_request_makes_no_task() -> None:
    s = session("A")
    s.client("A", ask(1))
    s.server(error(2)).expect(A=error(1))
    assert s.sizes == {"clients": 1, "sessions": 1}


@pytest.mark.parametrize("name", ["a", "x" * 1025])
def test_a_name_that_is_taken_or_too_long_is_nobodys(name: str) -> None:
    s = with_tasks()
    s.client("B", ask(2))
    s.server(made(4, name)).expect(B=made(2, name))
    s.client("B", about(3, "get", name)).expect(B=refusal(-32602, "unknown_task", id=3))


def test_a_task_of_an_odd_message_is_one() -> None:
    s = session("A")
    s.client("A", ask(1))
    s.server({**made(2, "a"), "extra": 1}).expect(A={**made(1, "a"), "extra": 1})
    s.client("A", about(2, "get", "a")).expect(server=about(3, "get", "a"))


def test_a_request_that_is_cancelled_before_its_task_was_made_owns_none() -> None:
    s = session("A")
    s.client("A", ask(1))
    s.client("A", cancelled(1)).expect(server=cancelled(2))
    s.server(made(2, "a")).expect()
    assert s.sizes == {"clients": 1, "sessions": 1}


def test_a_client_may_have_so_many_tasks_and_loses_first_those_that_are_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "MAX_OF_CLIENT", 1)
    s = with_tasks()
    s.client("A", ask(2)).expect(A=refusal(-31003, "too_many_tasks", id=2))
    s.client("A", about(3, "get", "a"))
    s.server(result(4, state("a", "completed")))
    s.client("A", ask(4)).expect(server=ask(5))
    s.client("A", about(5, "get", "a")).expect(A=refusal(-32602, "unknown_task", id=5))


def test_all_clients_together_may_have_so_many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MAX_IN_ALL", 2)
    s = with_tasks()
    s.join("C")
    s.client("A", ask(2)).expect(A=refusal(-31003, "too_many_tasks", id=2))


# -- the end


def test_the_tasks_of_a_client_that_leaves_are_given_up_unless_they_are_over() -> None:
    s = with_tasks()
    s.client("A", ask(2), ask(3))
    s.server(made(4, "done", "cancelled"))
    s.leave("A").expect(server=[left(5), about(6, "cancel", "a")])
    assert s.sizes == {"clients": 1, "sessions": 1, "tasks": 1}
    s.server(made(5, "late"), result(6, state("a", "cancelled")), status("a", "cancelled")).expect()
    s.server(b'{"jsonrpc":"2.0","id":6,"result":?}\n').expect()


def test_a_damaged_answer_to_a_task_that_was_given_up_costs_nobody_anything() -> None:
    s = with_tasks()
    s.leave("A").expect(server=about(4, "cancel", "a"))
    s.server(b'{"jsonrpc":"2.0","id":4,"result":?}\n').expect()


def test_nothing_is_kept_for_an_answer_that_nobody_waits_for() -> None:
    """A server that never says that it has given tasks up would fill a table with each client that leaves."""
    s = with_tasks()
    s.leave("A").expect(server=about(4, "cancel", "a"))
    assert not any(child.inflight for child in s.router._tables.children.values())


def test_the_tasks_of_a_process_end_with_it() -> None:
    s = with_tasks()
    s.crash().expect()
    assert s.sizes == {"clients": 2, "sessions": 2}
    s.leave("A").expect()


def test_at_a_stop_no_task_is_given_up_one_by_one() -> None:
    s = with_tasks()
    s.stop().expect(A=CLOSE, B=CLOSE)
    assert s.sizes == {}
