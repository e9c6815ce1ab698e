"""Unit tests do no I/O. Teardowns may: fixtures of other tests can end with the last test of a run."""

from collections.abc import Generator

import pytest

from tests.support.no_io import no_io


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    with no_io():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    with no_io():
        return (yield)
