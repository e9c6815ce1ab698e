"""Checks that a command's refs and callback URLs are well formed and within the policy."""

import re
from collections.abc import Collection, Sequence
from ipaddress import ip_address

from lucius.contract import ClientCallbackUrls, Fault
from lucius.contract.refs import (
    DEFAULT_PORTS,
    URI,
    Ref,
    Use,
    check_characters,
    find_form_faults,
    find_policy_faults,
    is_host_allowed,
    parse_ref,
    split_host,
)
from lucius.ports.config import ConfigSource
from lucius.public_addresses import is_private_host
from lucius.usecases.submit.ref_policy import NamedRules, RefPolicies


def check_refs(input_ref: str, output_ref: str, policy: Sequence[NamedRules]) -> list[Fault]:
    """Return the faults of both refs; an empty list if they may be used."""
    return check_ref("/input_ref", input_ref, "input", policy) + check_ref("/output_ref", output_ref, "output", policy)


def check_ref(pointer: str, ref: str, use: Use, policy: Sequence[NamedRules]) -> list[Fault]:
    """Return the faults of one ref, each with the setting that would permit it. The deployment's rules come first."""
    messages = find_form_faults(ref, use)
    found = parse_ref(ref)
    if found is None or check_characters(ref):
        return [Fault(pointer, message) for message in messages]
    for named in policy:
        messages += find_policy_faults(ref, use, named.rules, named.setting)
    messages += _find_private_host(found, use, policy)
    return [Fault(pointer, message) for message in dict.fromkeys(messages)]


def _find_private_host(found: Ref, use: Use, policy: Sequence[NamedRules]) -> list[str]:
    """Refuse an input at an address that services don't connect to, unless the deployment's rules list hosts."""
    if use != "input" or found.scheme != "https" or not is_private_host(found.authority):
        return []
    unlisted = [named.setting for named in policy[:1] if named.rules.hosts is None]
    return [f"{found.authority} is not a public address ({_permits(f'{setting}.hosts')})" for setting in unlisted]


def check_callback_urls(
    urls: ClientCallbackUrls | None,
    allowed_hosts: Collection[str],
    job_hosts: Collection[str] | None = None,
    tenant_hosts: tuple[str, Collection[str]] | None = None,
    *,
    allow_loopback: bool = False,
) -> list[Fault]:
    """Return the faults of the callback URLs.

    Callbacks to `ack` and `result` would carry our tokens, so their hosts must be allowed. `job` carries none, but the
    engine itself connects to it: without a list to any public host, by https; with one only to listed hosts.
    `tenant_hosts` narrows all three; its first item names the setting. `allow_loopback` permits `job` on this machine,
    by http too.
    """
    if urls is None:
        return []
    faults = []
    for name, url in (("ack", urls.ack), ("result", urls.result), ("job", urls.job)):
        if url is None:
            continue
        if name == "job":
            message = None if allow_loopback and _is_loopback(url) else _job_callback(url, job_hosts)
        else:
            message = _callback(url, allowed_hosts)
        if message is None and tenant_hosts is not None:
            message = _check_tenant_hosts(url, *tenant_hosts)
        if message is not None:
            faults.append(Fault(f"/callback_urls/{name}", message))
    return faults


def permits_callback(config: ConfigSource, refs: RefPolicies, tenant: str, url: str) -> bool:
    """Return True if services may send their callbacks, and with them our tokens, to a client's URL now."""
    hosts = config.current().callbacks.hosts
    return not check_callback_urls(ClientCallbackUrls(ack=url), hosts, tenant_hosts=refs.callback_hosts(tenant))


def _callback(url: str, allowed_hosts: Collection[str] | None) -> str | None:
    if message := check_characters(url):
        return message
    parts = URI.fullmatch(url)
    if parts is None or parts[1].lower() not in ("http", "https"):
        return "must be an http or https URL"
    if "@" in (parts[2] or ""):
        return "must not carry a user name or password"
    found = split_host(parts[2] or "")
    if found is None:
        return "has no valid host"
    if allowed_hosts is not None and not is_host_allowed(found[0], allowed_hosts):
        return f"callbacks to the host {found[0]} are not allowed by the policy ({_permits('callbacks.hosts')})"
    return None


def _check_tenant_hosts(url: str, setting: str, hosts: Collection[str]) -> str | None:
    """Compare host, and host and port, with the tenant's list; an entry without a port permits every port."""
    found = parse_ref(url)
    host = found.authority if found else ""
    port = (found.port or DEFAULT_PORTS.get(found.scheme)) if found else None
    if is_host_allowed(host, hosts) or is_host_allowed(f"{host}:{port}", hosts):
        return None
    return f"callbacks to the host {host} are not allowed by the tenant's policy ({_permits(setting)})"


def _permits(setting: str) -> str:
    return f"{setting} in the config file permits more"


def _is_loopback(url: str) -> bool:
    parts = URI.fullmatch(url)
    found = split_host(parts[2] or "") if parts and parts[1].lower() in ("http", "https") else None
    if found is None or check_characters(url):
        return False
    host = found[0]
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _job_callback(url: str, hosts: Collection[str] | None) -> str | None:
    if message := _callback(url, None):
        return message
    scheme, _, rest = url.lower().partition("://")
    authority = re.split(r"[/?#]", rest)[0]
    host, port = split_host(authority) or ("", None)
    if hosts is None:
        unless = "unless callbacks.job_hosts in the config file lists its host"
        if scheme != "https":
            return f"must be an https URL, {unless}"
        return f"{host} is not a public address ({_permits('callbacks.job_hosts')})" if is_private_host(host) else None
    port = port or DEFAULT_PORTS[scheme]
    if is_host_allowed(host, hosts) or is_host_allowed(f"{host}:{port}", hosts):
        return None
    return f"callbacks to the host {host} are not allowed by the policy ({_permits('callbacks.job_hosts')})"
