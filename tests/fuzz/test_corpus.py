"""All inputs that the fuzzer kept go through their targets again: they reach what no other input reaches."""

from __future__ import annotations

import pytest

from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_every_input_the_fuzzer_kept_is_survived(target: str) -> None:
    inputs = corpus.read(target)
    assert len(inputs) > 10
    for data in inputs:
        try:
            TARGETS[target](data)
        except Exception as fault:
            fault.add_note(f"input: {data!r}")
            raise


def test_the_corpus_is_small() -> None:
    """It is in everybody's clone."""
    assert sum(file.stat().st_size for file in corpus.FOLDER.iterdir()) < 300_000
