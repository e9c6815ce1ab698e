"""Protocols and their versions. Requests that change one are not sent twice: it may have changed meanwhile."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from lucius.client.http import Http
from lucius.contract.protocols import (
    ProtocolDiff,
    ProtocolList,
    ProtocolValidation,
    ProtocolVersionList,
    ProtocolView,
)


class AsyncProtocols:
    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(self, *, status: str = "PUBLISHED") -> ProtocolList:
        """Return the protocols in this state; ANY for all."""
        return self._http.read(await self._http.get("/v1/protocols", {"status": status}), ProtocolList)

    async def get(self, request_type: str, *, version: int | None = None) -> ProtocolView:
        """Return a protocol by request type or alias; without a version, the one that serves new commands."""
        params = None if version is None else {"version": str(version)}
        return self._http.read(await self._http.get(_path(request_type), params), ProtocolView)

    async def versions(self, request_type: str) -> ProtocolVersionList:
        return self._http.read(await self._http.get(f"{_path(request_type)}/versions"), ProtocolVersionList)

    async def diff(self, request_type: str, before: int, after: int) -> ProtocolDiff:
        return self._http.read(await self._http.get(f"{_path(request_type, before)}/diff/{after}"), ProtocolDiff)

    async def validate(self, document: Mapping[str, Any]) -> ProtocolValidation:
        """Check whether a document could be published now. Stores nothing."""
        answer = await self._http.post("/v1/protocols:validate", dict(document), repeatable=True)
        return self._http.read(answer, ProtocolValidation)

    async def draft(self, document: Mapping[str, Any]) -> ProtocolView:
        """Store a document as a draft, replacing the draft of that version if there is one."""
        return self._http.read(await self._http.post("/v1/protocols", dict(document)), ProtocolView)

    async def publish(
        self, request_type: str, version: int, *, reason: str | None = None, digest: str | None = None
    ) -> ProtocolView:
        """Publish a draft, which then serves new commands; with a digest, only if the draft still has it."""
        return await self._act(f"{_path(request_type, version)}:publish", {"reason": reason, "digest": digest})

    async def deprecate(
        self, request_type: str, version: int, *, reason: str, successor: Mapping[str, Any] | None = None
    ) -> ProtocolView:
        """Take a version out of use. `successor` names a request_type, a version, or both."""
        members = {"reason": reason, "successor": None if successor is None else dict(successor)}
        return await self._act(f"{_path(request_type, version)}:deprecate", members)

    async def delete(self, request_type: str, version: int) -> ProtocolView:
        """Delete a draft and return it."""
        return self._http.read(await self._http.delete(_path(request_type, version)), ProtocolView)

    async def _act(self, path: str, members: dict[str, Any]) -> ProtocolView:
        body = {name: value for name, value in members.items() if value is not None}
        return self._http.read(await self._http.post(path, body), ProtocolView)


def _path(request_type: str, version: int | None = None) -> str:
    path = f"/v1/protocols/{quote(request_type, safe='')}"
    return path if version is None else f"{path}/versions/{version}"
