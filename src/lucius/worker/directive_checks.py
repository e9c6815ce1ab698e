"""Validation of directives before they are executed."""

import re
from datetime import datetime

from lucius.contract import Directive
from lucius.worker.transport import origin

_PRINTABLE = re.compile(r"[!-~]+")


def check_directive(directive: Directive, service: str) -> str:
    """Return why a directive is invalid, or "". The job of an invalid one moves on at its ACK deadline."""
    if directive.service != service:
        return f"meant for service {directive.service}"
    if directive.attempt_no < 1 or not directive.lease_id or not directive.callback_token:
        return "attempt_no, lease_id or callback_token is missing"
    if directive.lease_seconds <= 0:
        return "lease_seconds is not positive"
    if not _PRINTABLE.fullmatch(directive.callback_token):
        return "callback_token has characters that a header cannot carry"
    urls = directive.callback_urls
    if any(origin(url) is None or not _PRINTABLE.fullmatch(url) for url in (urls.ack, urls.result, urls.heartbeat)):
        return "a callback URL is not an HTTP address"
    try:
        datetime.fromisoformat(directive.ack_deadline)
    except ValueError:
        return "ack_deadline is not a timestamp"
    return ""
