"""Every store is a record of small parts: one object for each port, none of which inherits from another."""

from lucius.ports.store import Store

PORTS = ("ledger", "outbox", "jobs", "history", "reviews", "protocols", "inbox", "sightings")
SHARED_PORTS = ("liveness", "secrets", "clock")


async def test_each_port_is_implemented_by_its_own_object(store: Store) -> None:
    parts = [getattr(store, name) for name in (*PORTS, *SHARED_PORTS)]
    found = [part for part in parts if part is not None]
    assert len({id(part) for part in found}) == len(found) >= len(PORTS)


async def test_no_part_inherits_from_another(store: Store) -> None:
    parts = [getattr(store, name) for name in (*PORTS, *SHARED_PORTS)]
    bases = {type(part).__name__: type(part).__bases__ for part in parts if part is not None}
    assert set(bases.values()) == {(object,)}, bases


async def test_a_part_has_the_methods_of_no_other_port(store: Store) -> None:
    methods = {name: public_methods(getattr(store, name)) for name in PORTS}
    for name, own in methods.items():
        for other, theirs in methods.items():
            assert name == other or own & theirs <= {"put"}, (name, other)


def public_methods(part: object) -> set[str]:
    return {name for name in dir(type(part)) if not name.startswith("_") and callable(getattr(part, name))}
