"""Checks that changes of OpenAPI and AsyncAPI documents are additive."""

from collections.abc import Iterator

from scripts.additive import Comparison, Direction, Json


def openapi_breaks(old: Json, new: Json) -> list[str]:
    """Return what clients of the old document would miss or be refused under the new one."""
    return list(_OpenApi(old, new).breaks())


def asyncapi_breaks(old: Json, new: Json) -> list[str]:
    """Return what services written for the old document would miss under the new one."""
    return [
        *_gone(old["channels"], new["channels"], "channel"),
        *_gone(old["operations"], new["operations"], "operation"),
        *_channels(old, new),
        *_operations(old, new),
        *_messages(old, new),
    ]


def _gone(old: Json, new: Json, what: str, where: str = "") -> Iterator[str]:
    yield from (f"{where}{what} {name} was removed" for name in old if name not in new)


class _OpenApi:
    def __init__(self, old: Json, new: Json) -> None:
        self._old = old
        self._new = new

    def breaks(self) -> Iterator[str]:
        yield from _gone(self._old["paths"], self._new["paths"], "path")
        for path, item in self._old["paths"].items():
            after = self._new["paths"].get(path)
            if after is not None:
                yield from _gone(item, after, "method", f"{path}: ")
                for method in item.keys() & after.keys():
                    yield from self._operation(item[method], after[method], f"{method.upper()} {path}")

    def _operation(self, old: Json, new: Json, where: str) -> Iterator[str]:
        if old.get("operationId") != new.get("operationId"):
            yield f"{where}: the operationId was {old.get('operationId')} and is {new.get('operationId')} now"
        if not _at_most(new.get("security", []), old.get("security", [])):
            yield f"{where}: other credentials are needed now"
        yield from self._parameters(old, new, where)
        yield from self._request(old.get("requestBody"), new.get("requestBody"), where)
        yield from _gone(old["responses"], new["responses"], "response", f"{where}: ")
        for status, response in old["responses"].items():
            if status in new["responses"]:
                yield from self._response(response, new["responses"][status], f"{where} {status}")

    def _parameters(self, old: Json, new: Json, where: str) -> Iterator[str]:
        before = {(p["in"], p["name"]): p for p in old.get("parameters", ())}
        after = {(p["in"], p["name"]): p for p in new.get("parameters", ())}
        yield from _gone(before, after, "parameter", f"{where}: ")
        for key, parameter in after.items():
            known = before.get(key)
            if parameter.get("required") and not (known and known.get("required")):
                yield f"{where}: parameter {key[1]} is required now"
            if known is not None:
                yield from self._schema(known, parameter, "accepts", f"{where} {key[1]}")

    def _request(self, old: Json, new: Json, where: str) -> Iterator[str]:
        if new is not None and new.get("required") and not (old or {}).get("required"):
            yield f"{where}: a body is required now"
        if old is None:
            return
        if new is None:
            yield f"{where}: the body is no longer described"
            return
        yield from self._content(old["content"], new["content"], "accepts", where)

    def _response(self, old: Json, new: Json, where: str) -> Iterator[str]:
        yield from _gone(old.get("headers", {}), new.get("headers", {}), "header", f"{where}: ")
        yield from self._content(old.get("content", {}), new.get("content", {}), "sends", where)

    def _content(self, old: Json, new: Json, direction: Direction, where: str) -> Iterator[str]:
        yield from _gone(old, new, "media type", f"{where}: ")
        for media_type in old.keys() & new.keys():
            yield from self._schema(old[media_type], new[media_type], direction, where)

    def _schema(self, old: Json, new: Json, direction: Direction, where: str) -> Iterator[str]:
        comparison = Comparison(self._old, self._new, direction)
        found = comparison.breaks(old.get("schema", {}), new.get("schema", {}), "")
        yield from (f"{where} {problem}" for problem in found)


def _at_most(new: list[Json], old: list[Json]) -> bool:
    """Return True if the old credentials still suffice; an empty list requires none."""
    return not new or (bool(old) and all(one in new for one in old))


def _channels(old: Json, new: Json) -> Iterator[str]:
    for name in old["channels"].keys() & new["channels"].keys():
        before, after = old["channels"][name], new["channels"][name]
        if before["address"] != after["address"]:
            yield f"channel {name}: the address was {before['address']} and is {after['address']} now"
        yield from _gone(before["messages"], after["messages"], "message", f"channel {name}: ")
        for parameter, values in before.get("parameters", {}).items():
            offered = after.get("parameters", {}).get(parameter, {}).get("enum", ())
            missing = [value for value in values.get("enum", ()) if value not in offered]
            yield from (f"channel {name}: {parameter} is no longer {value}" for value in missing)


def _operations(old: Json, new: Json) -> Iterator[str]:
    for name in old["operations"].keys() & new["operations"].keys():
        for member in ("action", "channel"):
            if old["operations"][name][member] != new["operations"][name][member]:
                yield f"operation {name}: its {member} is another one now"


def _messages(old: Json, new: Json) -> Iterator[str]:
    """Compare messages: those of our send operations and our replies are sent, all others accepted."""
    before, after = old["components"]["messages"], new["components"]["messages"]
    yield from _gone(before, after, "message")
    sent = _sent(old)
    for name in before.keys() & after.keys():
        comparison = Comparison(old, new, "sends" if name in sent else "accepts")
        for part in ("payload", "headers"):
            found = comparison.breaks(before[name].get(part, {}), after[name].get(part, {}), "")
            yield from (f"message {name} {part} {problem}" for problem in found)


def _sent(document: Json) -> set[str]:
    references = []
    for operation in document["operations"].values():
        replies = operation.get("reply", {}).get("messages", [])
        references += operation["messages"] if operation["action"] == "send" else replies
    return {_component(document, reference) for reference in references}


def _component(document: Json, reference: Json) -> str:
    """Return the name of the component that a channel's message refers to."""
    target: Json = document
    for part in reference["$ref"].removeprefix("#/").split("/"):
        target = target[part]
    return str(target["$ref"]).rsplit("/", 1)[-1]
