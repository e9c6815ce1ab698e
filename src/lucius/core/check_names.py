"""Checks of expressions and templates: that they can be read, and that what they read is there where they stand."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from lucius.core.check_sites import Finding, Layout, Path, Site
from lucius.core.instants import instant
from lucius.core.protocol import Call, Guard
from lucius.core.suggest import did_you_mean
from lucius.core.tools import ToolError, Tools

EVERYWHERE = frozenset({"input", "job", "steps"})
IN_MAPS = frozenset({"item", "item_index"})
OF_ANSWERS = frozenset({"response"})

MAX_EXPRESSIONS = 1000
MAX_CHARACTERS = 128 * 1024


def check_names(layout: Layout, tools: Tools) -> Iterator[Finding]:
    if too_many := _too_many(layout):
        yield too_many
        return
    for site in layout.sites:
        names = _Names(site, layout, tools)
        for path, expression in _expressions(site):
            yield from names.check(path, expression)
        for path, expression in _about_answers(site):
            yield from names.check(path, expression, OF_ANSWERS)
        for path, template in _templates(site):
            yield from names.check_template(path, template)


def _too_many(layout: Layout) -> Finding | None:
    """Reading an expression is work. So all of them together are limited before the first is read."""
    count = characters = 0
    for site in layout.sites:
        given = [*_expressions(site), *_about_answers(site)]
        for path, template in _templates(site):
            given += ((at, text) for at, text in _strings(path, template) if "${" in text)
        for path, text in given:
            count += max(1, text.count("${"))
            characters += len(text)
            if count > MAX_EXPRESSIONS or characters > MAX_CHARACTERS:
                most = f"{MAX_EXPRESSIONS:,} expressions with {MAX_CHARACTERS:,} characters"
                return Finding(path, f"a protocol can have {most} in all, and this is beyond it")
    return None


def _expressions(site: Site) -> Iterator[tuple[Path, str]]:
    spec = site.spec
    if spec.decision is not None:
        for number, choice in enumerate(spec.decision.choices):
            yield (*site.path, "decision", "choices", number, "when"), choice.when
    if spec.wait is not None and spec.wait.until is not None and instant(spec.wait.until) is None:
        yield (*site.path, "wait", "until"), spec.wait.until
    if spec.map is not None:
        yield (*site.path, "map", "items"), spec.map.items


def _about_answers(site: Site) -> Iterator[tuple[Path, str]]:
    """What is evaluated over the answer to a call."""
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


class _Names:
    """What can be read at one step."""

    def __init__(self, site: Site, layout: Layout, tools: Tools) -> None:
        self._layout = layout
        self._tools = tools
        self._names = EVERYWHERE | IN_MAPS if site.maps else EVERYWHERE
        self._steps = {near.step_id for scope in site.scope.outwards() for near in scope.sites}

    def check(self, path: Path, expression: str, more: frozenset[str] = frozenset()) -> Iterator[Finding]:
        if path[-1] == "until" and (reason := _why_no_instant(expression)):
            yield Finding(path, reason)
            return
        try:
            names = self._tools.names(expression)
        except ToolError as error:
            yield Finding(path, str(error))
            return
        yield from self._unknown(path, names, more)

    def check_template(self, path: Path, template: Any) -> Iterator[Finding]:
        for at, text in _strings(path, template):
            try:
                names = self._tools.names_in(text)
            except ToolError as error:
                yield Finding(at, str(error))
                continue
            yield from self._unknown(at, names, frozenset())

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
        if root in IN_MAPS:
            return f"{root} is only there inside a map"
        if root in OF_ANSWERS:
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


def _why_no_instant(text: str) -> str | None:
    """A date or time that can't be used would be read as arithmetic, which is never meant."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    if at.tzinfo is None:
        return "an instant needs its offset from UTC, as in 2030-01-31T12:00:00Z"
    return "an instant must be after 1970 and before the last day of 9999"
