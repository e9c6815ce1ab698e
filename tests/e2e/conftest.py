"""Processes that end with the test."""

from collections.abc import Iterator

import pytest

from tests.e2e.support import Zygote


@pytest.fixture(scope="module")
def forks() -> Iterator[Zygote]:
    started = Zygote()
    yield started
    started.close()
