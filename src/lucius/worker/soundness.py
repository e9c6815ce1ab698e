"""Whether a directive can be worked on at all."""

import re
from datetime import datetime

from lucius.contract import Directive
from lucius.worker.transport import origin

_PRINTABLE = re.compile(r"[!-~]+")


def fault_of(directive: Directive, service: str) -> str:
    """Why a directive can't be worked on, or nothing. Its ACK deadline then brings the job forward."""
    if directive.service != service:
        return f"meant for service {directive.service}"
    if directive.attempt_no < 1 or not directive.lease_id or not directive.callback_token:
        return "no attempt number, lease or callback token"
    if directive.lease_seconds <= 0:
        return "no lease"
    if not _PRINTABLE.fullmatch(directive.callback_token):
        return "a callback token that fits no header"
    urls = directive.callback_urls
    if any(origin(url) is None or not _PRINTABLE.fullmatch(url) for url in (urls.ack, urls.result, urls.heartbeat)):
        return "a callback URL is not an HTTP address"
    try:
        datetime.fromisoformat(directive.ack_deadline)
    except ValueError:
        return "no ACK deadline"
    return ""
