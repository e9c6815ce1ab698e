"""Every port has fewer than eight methods, so an adapter is small and a consumer gets no more than it needs."""

import importlib
import inspect
import pkgutil
import typing
from typing import Any

import pytest

from lucius import ports

MAX_PORT_METHODS = 7


def protocols_of(module: str) -> list[Any]:
    """Return the Protocol classes that a module of the ports defines."""
    found = importlib.import_module(module)
    classes = (one for _, one in inspect.getmembers(found, inspect.isclass) if one.__module__ == module)
    return [one for one in classes if getattr(one, "_is_protocol", False)]


MODULES = [f"{ports.__name__}.{info.name}" for info in pkgutil.iter_modules(ports.__path__)]
PORTS = [port for module in MODULES for port in protocols_of(module)]


def members(port: type) -> set[str]:
    """Return the methods and attributes that a port asks for, inherited ones included."""
    asked = [base for base in port.__mro__ if base not in (object, typing.Protocol, typing.Generic)]
    return {
        name
        for base in asked
        for name, member in vars(base).items()
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
    } | {name for base in asked for name in inspect.get_annotations(base)}


@pytest.mark.parametrize("port", PORTS, ids=lambda port: port.__name__)
def test_port_has_fewer_than_eight_methods(port: type) -> None:
    found = members(port)
    assert 0 < len(found) <= MAX_PORT_METHODS, sorted(found)


def test_store_ports_are_among_the_counted_ports() -> None:
    names = {port.__name__ for port in PORTS}
    assert {"Ledger", "Outbox", "JobReader", "HistoryReader", "ReviewReader", "ProtocolStore", "Inbox"} <= names


def test_inherited_methods_count() -> None:
    class Small(typing.Protocol):
        def first(self) -> None: ...

    class Large(Small, typing.Protocol):
        second: int

    assert members(Large) == {"first", "second"}
