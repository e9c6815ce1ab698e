"""Rules for the request line of every route: names that can exist, known query parameters, HEAD and Allow."""

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from urllib.parse import parse_qsl

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Message, Scope, Send

from lucius.api.request_parsing import read_headers
from lucius.contract import Fault
from lucius.usecases.access.auth import Authenticator
from lucius.usecases.errors import RejectCode, Rejected

CHECKED_PREFIX = "/v1/"
MAX_SHOWN_CHARACTERS = 64
MAX_COMPARED_CHARACTERS = 32
MAX_QUERY_PARAMETERS = 100
MAX_FAULTS = 5
HEAD_KEY = "lucius.head"


class NameConvertor(StringConvertor):
    """Matches a path segment without a colon: what follows a colon is an action, and has a route of its own."""

    regex = "[^/:]+"


register_url_convertor("name", NameConvertor())

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class RequestRules:
    """Checks requests for the routes of one application, before any of them is called."""

    def __init__(self, routes: Sequence[BaseRoute], auth: Callable[[], Authenticator | None]) -> None:
        self._routes = routes
        self._auth = auth
        self._known: dict[str, frozenset[str]] = {}

    def check(self, scope: Scope) -> None:
        """Raise Rejected for a name that no route and no record can have.

        A caller without a valid key is refused for that first.
        """
        path: str = scope["path"]
        if not path.startswith(CHECKED_PREFIX) or (not scope["query_string"] and not _CONTROL.search(path)):
            return
        try:
            if _CONTROL.search(path):
                raise Rejected(RejectCode.NOT_FOUND, "the address has a control character, which no name has")
            route = self._find(scope)
            if route is not None:
                check_query(scope["query_string"], self._parameters(route))
        except Rejected:
            if auth := self._auth():
                auth.authenticate(read_headers(scope["headers"])[0])
            raise

    def _find(self, scope: Scope) -> APIRoute | None:
        for route in self._routes:
            if route.matches(scope)[0] is Match.FULL:
                return route if isinstance(route, APIRoute) else None
        return None

    def _parameters(self, route: APIRoute) -> frozenset[str]:
        """Name the query parameters that the route and its dependencies declare."""
        if route.unique_id not in self._known:
            self._known[route.unique_id] = frozenset(_declared(route.dependant))
        return self._known[route.unique_id]


def _declared(of: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in of.query_params)
    for dependency in of.dependencies:
        yield from _declared(dependency)


def check_query(query: bytes, known: Collection[str]) -> None:
    """Raise Rejected for parameters that the route does not declare or that are repeated, and for unusable values.

    Stops at the fifth fault and reads 100 parameters at most: the caller need not be authenticated.
    """
    name, _, value = query.partition(b"=")
    if value.isalnum() and name.decode("latin-1") in known:  # one plain parameter, such as wait=20: no need to parse
        return
    try:
        given = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_QUERY_PARAMETERS)
    except ValueError:
        detail = f"a query may have {MAX_QUERY_PARAMETERS} parameters, this one has more"
        raise Rejected(RejectCode.INVALID_QUERY, detail) from None
    faults = list(islice(_find_faults(given, known), MAX_FAULTS))
    if faults:
        detail = "; ".join(f"{fault.pointer}: {fault.message}" for fault in faults)
        raise Rejected(RejectCode.INVALID_QUERY, detail, faults)


def _find_faults(given: Sequence[tuple[str, str]], known: Collection[str]) -> Iterator[Fault]:
    seen: set[str] = set()
    for name, value in given:
        shown = name[:MAX_SHOWN_CHARACTERS]
        if name not in known:
            yield Fault(shown, _unknown(shown, known))
        elif name in seen:
            yield Fault(shown, "is there more than once")
        elif not value:
            yield Fault(shown, "is empty; leave it out instead")
        elif name != "cursor" and _CONTROL.search(value):  # a cursor is decoded, and refused by a code of its own
            yield Fault(shown, "has a control character, which no name has")
        seen.add(name)


def _unknown(name: str, known: Collection[str]) -> str:
    is_short = len(name) <= MAX_COMPARED_CHARACTERS
    if is_short and (close := difflib.get_close_matches(name, known, n=1, cutoff=0.5)):
        return f"unknown query parameter; did you mean {close[0]}?"
    return f"unknown query parameter; there are {', '.join(sorted(known))}" if known else "this address takes no query"


def allowed_methods(routes: Sequence[BaseRoute], scope: Scope) -> str:
    """List the methods of every route at the request's path, as `Allow` has them."""
    methods: set[str] = set()
    for route in routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return allow(methods)


def allow(methods: Collection[str]) -> str:
    """Write methods as the value of `Allow`; HEAD goes with GET."""
    return ", ".join(sorted({*methods, "HEAD"} if "GET" in methods else methods))


def as_get(scope: Scope, send: Send) -> tuple[Scope, Send]:
    """Turn a HEAD request into the GET whose headers it asks for.

    Streaming routes check `is_head` and start no stream.
    """

    async def send_without_body(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return {**scope, "method": "GET", HEAD_KEY: True}, send_without_body


def is_head(scope: Scope) -> bool:
    """Return whether a request came as HEAD and was turned into a GET."""
    return bool(scope.get(HEAD_KEY))
