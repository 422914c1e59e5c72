"""Look for bytes that break the bridge, guided by which of its code they reach.

    python3 -m tests.fuzz TARGET [--seconds N]    framer, codec or router, for N seconds [60]
    python3 -m tests.fuzz TARGET --keep           add what reached new code to the committed corpus
    python3 -m tests.fuzz TARGET --input FILE     one input alone, as it was saved; needs no fuzzer

It begins with the committed corpus. What breaks a promise is saved in this folder, and the exit status is 1.
The fuzzer is `atheris`; how to install it is said where it is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

INSTALL: Final = """\
fuzz: atheris is missing. It installs on Linux (x86-64) with Python 3.11 to 3.13:
    python3 -m venv .venv-fuzz
    .venv-fuzz/bin/pip install --require-hashes -r requirements/fuzz.txt
and then
    .venv-fuzz/bin/python -m tests.fuzz ..."""

WORDS: Final[dict[str, tuple[bytes, ...]]] = {
    "framer": (b"\n", b"\r", b"\xff"),
    "codec": (
        *(b'"jsonrpc":"2.0"', b'"id":', b'"method":', b'"params":', b'"result":', b'"error":', b'"\\u0069d"'),
        *(b"\xef\xbb\xbf", b"\\ud83d", b"\\ude00", b"\\\\", b'\\"', b"\r", b"1e400", b"-0", b"null", b"true"),
        *(b"[[[[[[", b"]]]]]]", b"{}", b"}\n{", b"\xff", b"\xe2\x82", b"NaN", b'"Id"', b"1.0", b'"PARAMS"'),
    ),
    "router": (
        *(b'{"jsonrpc":"2.0","id":', b',"method":"', b'","params":{', b',"result":{', b',"error":{"code":'),
        b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"',
        b'"io.modelcontextprotocol/logLevel":"info"',
        b'"io.modelcontextprotocol/subscriptionId":',
        b'"io.modelcontextprotocol/related-task":{"taskId":"',
        *(
            b'"progressToken":',
            b'"requestId":',
            b'"who":"@"',
            b'"uri":"@"',
            b'"taskId":"@"',
            b'"level":"info"',
        ),
        *(b"notifications/cancelled", b"notifications/progress", b"notifications/message"),
        *(b"subscriptions/listen", b"server/discover", b"initialize", b"notifications/initialized", b"ping"),
        *(b"resources/subscribe", b"resources/unsubscribe", b"logging/setLevel", b"tasks/get", b"tasks/list"),
        *(b"tasks/cancel", b"tools/call", b'"task":{}', b"tools/list", b"notifications/tasks/status"),
        b'"notifications":{"toolsListChanged":true}',
        b'"notifications":{"resourceSubscriptions":["@"]}',
        *(b"\nE0", b"\nF0", b"\nP0", b"\nL0", b"\nL0B", b"\nM0", b"\nK", b"\nJ", b"\nV", b"\nW", b"\nR"),
        *(b"\nXA", b"\nHA", b"\nNA", b"\nD", b"\nZ", b"\nY\x05", b"\nY\x1f", b"\\ud83d", b"^", b"-32601"),
    ),
}
"""What a fuzzer would take long to find by itself."""


def quoted(word: bytes) -> str:
    return '"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n'


def fuzz(target: str, options: list[str]) -> None:
    """Fuzz in this process; `options` begin with the command's name. Does not return: the fuzzer exits."""
    import atheris

    with atheris.instrument_imports(include=["bridge"]):
        from tests.fuzz.targets import TARGETS

    atheris.Setup(options, TARGETS[target])
    atheris.Fuzz()


def run(*options: str | Path) -> int:
    """Run the fuzzer in a process of its own; its exit status."""
    return subprocess.run([*map(str, options)], stdin=subprocess.DEVNULL, check=False).returncode


def launcher(target: str, folder: Path) -> Path:
    """A command that fuzzes: the fuzzer starts itself again by its name, to minimise."""
    script = folder / "again"
    command = [sys.executable, "-m", "tests.fuzz", target, "--libfuzzer", str(script)]
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o700)
    return script


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m tests.fuzz", description="Fuzz the core.")
    parser.add_argument("target", choices=WORDS)
    parser.add_argument("--seconds", type=int, default=60, metavar="N", help="how long [%(default)s]")
    parser.add_argument("--keep", action="store_true", help="write the corpus anew, with what was found")
    parser.add_argument("--input", type=Path, metavar="FILE", help="put this one input through the target")
    parser.add_argument("--libfuzzer", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    target: str = options.target
    if options.input is not None:
        if importlib.util.find_spec("msgspec") is None:
            raise SystemExit("fuzz: msgspec is missing: run this with .venv/bin/python, see python3 -m tests")
        from tests.fuzz.targets import TARGETS

        TARGETS[target](options.input.read_bytes())
        print("nothing is wrong with it")
        return
    if importlib.util.find_spec("atheris") is None:
        raise SystemExit(INSTALL)
    if options.libfuzzer is not None:
        fuzz(target, options.libfuzzer)

    from tests.fuzz import corpus

    with tempfile.TemporaryDirectory(prefix="mcp-bridge-fuzz-") as scratch:
        before, least, words = (Path(scratch, name) for name in ("corpus", "least", "words"))
        before.mkdir()
        least.mkdir()
        for number, one in enumerate(corpus.read(target)):
            (before / f"{number:05}").write_bytes(one)
        again = launcher(target, Path(scratch))
        words.write_text("".join(map(quoted, WORDS[target])))
        status = run(
            again,
            f"-max_total_time={options.seconds}",
            f"-dict={words}",
            "-max_len=3000",
            "-timeout=20",
            f"-artifact_prefix={target}-",
            "-print_final_stats=1",
            before,
        )
        if options.keep:
            status = status or run(again, "-merge=1", least, before)
            if status == 0:
                corpus.write(target, [file.read_bytes() for file in least.iterdir()])
                print(f"fuzz: the corpus of {target} has {len(corpus.read(target))} inputs")
    sys.exit(1 if status else 0)


if __name__ == "__main__":
    main()
