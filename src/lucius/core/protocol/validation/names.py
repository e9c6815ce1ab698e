"""Checks of expressions and templates: that they parse, and that the names which they read exist."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from lucius.core.model.instants import parse_instant
from lucius.core.model.tools import ITEM, ToolError, Tools
from lucius.core.protocol.definition import Call, Guard
from lucius.core.protocol.validation.locations import Finding, Path, ProtocolOutline, Site
from lucius.core.protocol.validation.members import Members
from lucius.core.protocol.validation.suggestions import did_you_mean

COMMON_NAMES = frozenset({"input", "job", "steps"})
MAP_NAMES = frozenset({"item", "item_index"})
RESPONSE_NAMES = frozenset({"response"})

MAX_EXPRESSIONS = 1000
MAX_EXPRESSION_CHARS = 128 * 1024
_HEADER_KEY = "names of headers are not templates: an expression can only stand in the value"
_OBJECT_KEY = (
    "keys are not templates, so this one is sent as it is written: put the expression into a value, or write $${ if a "
    "plain ${ is meant"
)


def check_names(layout: ProtocolOutline, tools: Tools, input_schema: dict[str, Any]) -> Iterator[Finding]:
    if too_many := _too_many(layout):
        yield too_many
        return
    members = Members((site.spec for site in layout.sites), input_schema)
    for site in layout.sites:
        names = _Names(site, layout, tools, members)
        for path, expression in _expressions(site):
            yield from names.check(path, expression)
        for path, expression in _response_expressions(site):
            yield from names.check(path, expression, RESPONSE_NAMES)
        for path, template in _templates(site):
            yield from names.check_template(path, template)


def _too_many(layout: ProtocolOutline) -> Finding | None:
    """Limit the number and size of all expressions before the first is parsed, since parsing is expensive."""
    count = characters = 0
    for site in layout.sites:
        given = [*_expressions(site), *_response_expressions(site)]
        for path, template in _templates(site):
            texts = (*_strings(path, template), *_keys(path, template))
            given += ((at, text) for at, text in texts if "${" in text)
        for path, text in given:
            count += max(1, text.count("${"))
            characters += len(text)
            if count > MAX_EXPRESSIONS or characters > MAX_EXPRESSION_CHARS:
                most = f"{MAX_EXPRESSIONS:,} expressions with {MAX_EXPRESSION_CHARS:,} characters"
                return Finding(path, f"a protocol can have {most} in all, and this is beyond it")
    return None


def _expressions(site: Site) -> Iterator[tuple[Path, str]]:
    spec = site.spec
    if spec.decision is not None:
        for number, choice in enumerate(spec.decision.choices):
            yield (*site.path, "decision", "choices", number, "when"), choice.when
    if spec.wait is not None and spec.wait.until is not None and parse_instant(spec.wait.until) is None:
        yield (*site.path, "wait", "until"), spec.wait.until
    if spec.map is not None:
        yield (*site.path, "map", "items"), spec.map.items


def _response_expressions(site: Site) -> Iterator[tuple[Path, str]]:
    """Yield the expressions that are evaluated over the response to a call."""
    call = site.spec.external_call
    if call is None:
        return
    path = (*site.path, "external_call")
    if call.result is not None:
        yield (*path, "result"), call.result
    for number, rule in enumerate(call.errors):
        yield (*path, "errors", number, "when"), rule.when
    if call.guard is not None:
        yield (*path, "guard", "done_when"), call.guard.done_when
        if call.guard.result is not None:
            yield (*path, "guard", "result"), call.guard.result


def _templates(site: Site) -> Iterator[tuple[Path, Any]]:
    spec = site.spec
    if spec.external_call is not None:
        yield from _request((*site.path, "external_call"), spec.external_call)
        if spec.external_call.guard is not None:
            yield from _request((*site.path, "external_call", "guard"), spec.external_call.guard)
    if spec.notify is not None:
        yield (*site.path, "notify", "url"), spec.notify.url
        yield (*site.path, "notify", "data"), spec.notify.data
    if spec.human_approval is not None:
        yield (*site.path, "human_approval", "prompt"), spec.human_approval.prompt


def _request(path: Path, request: Call | Guard) -> Iterator[tuple[Path, Any]]:
    yield (*path, "url"), request.url
    yield (*path, "headers"), request.headers
    yield (*path, "body"), request.body


def _strings(path: Path, template: Any) -> Iterator[tuple[Path, str]]:
    match template:
        case str():
            yield path, template
        case list() | tuple():
            for number, part in enumerate(template):
                yield from _strings((*path, number), part)
        case dict():
            for key, part in template.items():
                yield from _strings((*path, key), part)
        case _:
            return


def _keys(path: Path, template: Any) -> Iterator[tuple[Path, str]]:
    """Yield every key of the objects in a template."""
    match template:
        case list() | tuple():
            for number, part in enumerate(template):
                yield from _keys((*path, number), part)
        case dict():
            for key, part in template.items():
                yield (*path, key), key
                yield from _keys((*path, key), part)
        case _:
            return


class _Names:
    """Names that expressions of one step can read."""

    def __init__(self, site: Site, layout: ProtocolOutline, tools: Tools, members: Members) -> None:
        self._layout = layout
        self._tools = tools
        self._members = members
        self._names = COMMON_NAMES | MAP_NAMES if site.maps else COMMON_NAMES
        self._item = _item_path(site, tools)
        self._steps = {near.step_id for scope in site.scope.outwards() for near in scope.sites}

    def check(self, path: Path, expression: str, more: frozenset[str] = frozenset()) -> Iterator[Finding]:
        if path[-1] == "until" and (reason := _instant_fault(expression)):
            yield Finding(path, reason)
            return
        try:
            names = self._tools.names(expression)
        except ToolError as error:
            yield Finding(path, str(error))
            return
        unknown = list(self._unknown(path, names, more))
        yield from unknown or self._missing_members(path, [expression])

    def check_template(self, path: Path, template: Any) -> Iterator[Finding]:
        for at, key in _keys(path, template):
            if "${" in key and self._has_expression(key):
                is_header = path[-1] == "headers"  # no header can have such a name
                yield Finding(at, _HEADER_KEY if is_header else _OBJECT_KEY, fatal=is_header)
        for at, text in _strings(path, template):
            try:
                names = self._tools.names_in(text)
                fault = self._tools.url_fault(text) if at[-1] == "url" and at == path else None
            except ToolError as error:
                yield Finding(at, str(error))
                continue
            read = self._tools.expressions_in(text)
            unknown = list(self._unknown(at, names, frozenset())) or list(self._missing_members(at, read))
            yield from unknown or ([Finding(at, fault)] if fault is not None else [])

    def _has_expression(self, text: str) -> bool:
        try:
            return bool(self._tools.expressions_in(text))
        except ToolError:  # it has an unterminated one
            return True

    def _missing_members(self, path: Path, expressions: Iterable[str]) -> Iterator[Finding]:
        for expression in dict.fromkeys(expressions):
            tested = {self._follow_item(names) for names in self._tools.tested(expression)}
            read = (self._follow_item(names) for names in sorted(self._tools.paths(expression)))
            reasons = dict.fromkeys(self._members.fault(names, tested) for names in read)
            yield from (Finding(path, reason) for reason in reasons if reason is not None)

    def _follow_item(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Replace `item` by the path of the list it comes from, if that is known."""
        return (*self._item, *names[1:]) if self._item is not None and names[0] == "item" else names

    def _unknown(self, path: Path, names: frozenset[str], more: frozenset[str]) -> Iterator[Finding]:
        for name in sorted(names):
            reason = self._reason(name, self._names | more)
            if reason is not None:
                yield Finding(path, reason)

    def _reason(self, name: str, known: frozenset[str]) -> str | None:
        root, _, step_id = name.partition(".")
        if root == "steps":
            return self._reason_for_step(step_id) if step_id not in self._steps else None
        if root in known:
            return None
        if root in MAP_NAMES:
            return f"{root} is only there inside a map"
        if root in RESPONSE_NAMES:
            return f"{root} is only there in result, errors and guard of an external_call"
        if root == "secrets":
            return "a secret can only stand by itself in a template: ${secrets.NAME}"
        return f"there is nothing called {root} here{did_you_mean(root, known)}"

    def _reason_for_step(self, step_id: str) -> str:
        found = self._layout.by_id.get(step_id)
        if not step_id:
            return "steps must be followed by the id of a step: steps.NAME or steps['NAME']"
        if found is None:
            return f"there is no step {step_id}{did_you_mean(step_id, self._steps)}"
        if found.handler_of is not None:
            return f"{step_id} is the compensation of {found.handler_of.step_id}, which can't be read"
        around = found.scope.around
        assert around is not None, "steps of the outermost list can be read everywhere"
        return f"{step_id} is inside {around.step_id} and can't be read from outside"


def _item_path(site: Site, tools: Tools) -> tuple[str, ...] | None:
    """Return the path of `item` at a step if the innermost map around it maps over a plain path, else None."""
    around = next((container for container in site.containers() if container.spec.map is not None), None)
    if around is None or around.spec.map is None:
        return None
    expression = around.spec.map.items.strip()
    try:
        read = tools.paths(expression)
    except ToolError:
        return None
    names = next((names for names in read if ".".join(names) == expression), None)
    if names is None or names[0] != "item":
        return None if names is None else (*names, ITEM)
    outer = _item_path(around, tools)
    return None if outer is None else (*outer, *names[1:], ITEM)


def _instant_fault(text: str) -> str | None:
    """Return why a date or time is not a valid instant; None for other text, which is an expression."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    if at.tzinfo is None:
        return "an instant needs its offset from UTC, as in 2030-01-31T12:00:00Z"
    return "an instant must be after 1970 and before the last day of 9999"
