"""Addresses: their text forms, what is refused and how, and who counts as loopback."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.address import Address, is_loopback, parse_address
from bridge.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected", "canonical"),
    [
        ("unix:/run/mcp.sock", Address("unix", path="/run/mcp.sock"), "unix:/run/mcp.sock"),
        ("unix:mcp.sock", Address("unix", path="mcp.sock"), "unix:mcp.sock"),
        ("unix:./@odd", Address("unix", path="./@odd"), "unix:./@odd"),
        ("unix:a:b c", Address("unix", path="a:b c"), "unix:a:b c"),
        ("unix:///run/mcp.sock", Address("unix", path="/run/mcp.sock"), "unix:/run/mcp.sock"),
        ("unix:@mcp", Address("abstract", path="mcp"), "unix:@mcp"),
        ("unix:@@/x", Address("abstract", path="@/x"), "unix:@@/x"),
        ("unix:@" + "n" * 107, Address("abstract", path="n" * 107), "unix:@" + "n" * 107),
        ("tcp:127.0.0.1:8080", Address("tcp", host="127.0.0.1", port=8080), "tcp:127.0.0.1:8080"),
        ("tcp:LocalHost:0", Address("tcp", host="localhost", port=0), "tcp:localhost:0"),
        ("tcp:my-svc.example.com.:65535", Address("tcp", host="my-svc.example.com.", port=65535), None),
        ("tcp:[::1]:8080", Address("tcp", host="::1", port=8080), "tcp:[::1]:8080"),
        ("tcp:[0:0:0:0:0:0:0:1]:08080", Address("tcp", host="::1", port=8080), "tcp:[::1]:8080"),
        ("tcp:[FE80::1%eth0]:1", Address("tcp", host="fe80::1%eth0", port=1), "tcp:[fe80::1%eth0]:1"),
        ("tls:mcp.example.com:8443", Address("tls", host="mcp.example.com", port=8443), None),
        ("tls:[::1]:8443", Address("tls", host="::1", port=8443), None),
        ("systemd:", Address("systemd"), "systemd:"),
        ("systemd:mcp-git", Address("systemd", path="mcp-git"), "systemd:mcp-git"),
    ],
)
def test_each_form_is_parsed_and_printed_in_its_canonical_text(
    text: str, expected: Address, canonical: str | None
) -> None:
    """Contract, section 1: the forms of ADDR."""
    address = parse_address(text)
    assert address == expected
    assert str(address) == (canonical if canonical is not None else text)


BAD = [
    ("", "empty"),
    ("unix", "does not start with"),
    ("http://127.0.0.1:80", "does not start with"),
    ("pipe:x", "does not start with"),
    (" unix:/x", "does not start with"),
    ("TCP:localhost:80", "capitals"),
    ("/run/mcp.sock", "no scheme"),
    ("./mcp.sock", "no scheme"),
    ("@mcp", "no scheme"),
    ("8080", "no scheme"),
    ("localhost:8080", "no scheme"),
    ("[::1]:8080", "no scheme"),
    ("unix:", "no path"),
    ("unix:@", "no name"),
    ("unix:/run/mcp/", "directory"),
    ("unix:/", "directory"),
    ("unix:..", "directory"),
    ("unix:/run/m\0cp.sock", "NUL"),
    ("unix:@a\0b", "NUL"),
    ("unix:/run/\ud83d", "no file name"),
    ("unix:@" + "n" * 108, "108 bytes"),
    ("unix:@" + "\N{SNOWMAN}" * 36, "108 bytes"),
    ("tcp:", "no host and port"),
    ("tcp:localhost", "no port"),
    ("tcp:localhost:", "no port"),
    ("tcp::8080", "no host"),
    ("tcp:localhost:http", "not a number"),
    ("tcp:localhost:-1", "not a number"),
    ("tcp:localhost:8 0", "not a number"),
    ("tcp:localhost:\N{ARABIC-INDIC DIGIT EIGHT}", "not a number"),
    ("tcp:localhost:65536", "over 65535"),
    ("tcp:localhost:" + "9" * 10_000, "over 65535"),
    ("tcp:::1:8080", "brackets"),
    ("tcp:fe80::1", "brackets"),
    ("tcp:::", "brackets"),
    ("tcp:[::1]", "no port"),
    ("tcp:[::1]8080", "after the ]"),
    ("tcp:[::1:8080", "no ]"),
    ("tcp:[127.0.0.1]:8080", "no IPv6 address"),
    ("tcp:[\ud83d]:8080", "no IPv6 address"),
    ("tcp:[fe80::1%]:8080", "interface"),
    ("tcp:*:8080", "0.0.0.0"),
    ("tcp://localhost:8080", "//"),
    ("tcp:exam ple:8080", "neither a name"),
    ("tcp:ex\namp\x1b[1mle:8080", "neither a name"),
    ("tcp:a..b:8080", "empty or over-long"),
    ("tcp:" + "a" * 64 + ".example.com:8080", "empty or over-long"),
    ("tcp:" + "a." * 127 + "a:8080", "empty or over-long"),
    ("tcp:127.1:8080", "four numbers"),
    ("tcp:0x7f000001:8080", "four numbers"),
    ("tcp:2130706433:8080", "four numbers"),
    ("tcp:256.0.0.1:8080", "four numbers"),
    ("tls:localhost", "no port"),
    ("systemd:a:b", "colon"),
    ("systemd:a\nb", "control"),
    ("systemd:" + "n" * 256, "255"),
]


@pytest.mark.parametrize(("text", "reason"), BAD, ids=[ascii(text)[:40] for text, _ in BAD])
def test_a_bad_address_is_refused_in_one_line_with_an_example_that_works(text: str, reason: str) -> None:
    """Contract, section 1: "A bad one: one line, exit 2"."""
    with pytest.raises(ConfigError) as caught:
        parse_address(text)
    line = str(caught.value)
    assert caught.value.exit_code == 2
    assert reason in line
    assert line.isprintable()
    assert len(line) < 400
    _, marker, examples = line.rpartition("; example: ")
    assert marker
    for example in examples.split(" or "):
        parse_address(example)


@pytest.mark.parametrize(
    ("text", "example"),
    [
        ("/srv/git.sock", "unix:/srv/git.sock"),
        ("@git", "unix:@git"),
        ("9000", "tcp:127.0.0.1:9000"),
        ("localhost:9000", "tcp:localhost:9000"),
        ("[::1]:9000", "tcp:[::1]:9000"),
        ("tcp://localhost:9000/", "tcp:localhost:9000"),
        ("tls:mcp.example.com", "tls:mcp.example.com:8080"),
        ("Unix:/srv/git.sock", "unix:/srv/git.sock"),
    ],
)
def test_the_example_is_what_was_meant_where_that_can_be_guessed(text: str, example: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_address(text)
    assert str(caught.value).endswith(f"; example: {example}")


_paths = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60)
_labels = st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
_hosts = st.one_of(
    st.lists(_labels, min_size=1, max_size=4).map(".".join).filter(lambda host: "0x" not in host),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
)


def _is_file(path: str) -> bool:
    return path.rpartition("/")[2] not in ("", ".", "..") and path[0] != "@" and not path.startswith("//")


_addresses = st.one_of(
    _paths.filter(_is_file).map(lambda path: Address("unix", path=path)),
    _paths.filter(lambda name: len(name.encode()) <= 107).map(lambda name: Address("abstract", path=name)),
    st.builds(lambda host, port: f"tcp:{_bracketed(host)}:{port}", _hosts, st.integers(0, 65535)).map(
        parse_address
    ),
    st.builds(lambda host, port: f"tls:{_bracketed(host)}:{port}", _hosts, st.integers(0, 65535)).map(
        parse_address
    ),
    st.from_regex(r"[a-zA-Z0-9._ -]{0,40}", fullmatch=True).map(lambda name: Address("systemd", path=name)),
)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@given(_addresses)
def test_the_text_of_an_address_gives_the_same_address_back(address: Address) -> None:
    assert parse_address(str(address)) == address
    assert str(parse_address(str(address))) == str(address)


@given(st.one_of(st.text(max_size=60), st.text(":[]/@.%0189abtcp", max_size=20).map("tcp:".__add__)))
def test_any_text_is_an_address_or_a_config_error_of_one_line(text: str) -> None:
    """Contract, section 1: no input gives a traceback."""
    outcome: Address | ConfigError
    try:
        outcome = parse_address(text)
    except ConfigError as error:
        outcome = error
    if isinstance(outcome, Address):
        assert parse_address(str(outcome)) == outcome
    else:
        assert str(outcome).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "unix:/run/mcp.sock",
        "unix:@mcp",
        "tcp:127.0.0.1:1",
        "tcp:127.8.9.10:1",
        "tcp:localhost:1",
        "tcp:localhost.:1",
        "tcp:[::1]:1",
        "tcp:[::ffff:127.0.0.1]:1",
        "tls:[::1]:1",
    ],
)
def test_what_only_this_machine_can_reach_is_loopback(text: str) -> None:
    """Contract, section 9: "TCP: loopback needs nothing"."""
    assert is_loopback(parse_address(text))


@pytest.mark.parametrize(
    "text",
    [
        "tcp:0.0.0.0:1",
        "tcp:[::]:1",
        "tcp:[::ffff:10.0.0.1]:1",
        "tcp:[fe80::1%lo]:1",
        "tcp:10.0.0.1:1",
        "tcp:128.0.0.1:1",
        "tcp:mcp.example.com:1",
        "tcp:127.0.0.1.example.com:1",
        "tcp:localhost.example.com:1",
        "tls:0.0.0.0:1",
        "systemd:",
        "systemd:localhost",
    ],
)
def test_what_others_may_reach_is_not_loopback(text: str) -> None:
    """Contract, section 9: any other TCP address is refused unless the user insists."""
    assert not is_loopback(parse_address(text))


def test_an_address_is_immutable_hashable_and_copied_whole() -> None:
    address = parse_address("tcp:[::1]:8080")
    with pytest.raises(AttributeError):
        address.port = 1
    with pytest.raises(AttributeError):
        del address.port
    with pytest.raises(AttributeError):
        address.extra = 1
    assert address.port == 8080
    assert copy.deepcopy(address) == address
    assert pickle.loads(pickle.dumps(address)) == address
    assert {address: 1}[parse_address("tcp:[::1]:8080")] == 1
    assert address != parse_address("tls:[::1]:8080")
    assert address != "tcp:[::1]:8080"
    assert repr(address) == "Address('tcp:[::1]:8080')"


def test_importing_addresses_loads_neither_socket_nor_typing() -> None:
    """A host starts `connect` for each session: what it imports is paid each time."""
    code = "import sys, bridge.address; print(*(m for m in ('socket', 'typing', 'enum') if m in sys.modules))"
    # -S: site may load modules of its own, for instance for editable installs.
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=10)
    assert done.stdout.split() == [], done.stderr
    assert done.returncode == 0, done.stderr
