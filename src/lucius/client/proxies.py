"""The proxy between us and a control plane, as the environment has it: HTTP_PROXY, HTTPS_PROXY and NO_PROXY.

aiohttp could read these itself, but then also ~/.netrc, whose password would take the place of our key.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from lucius.client.errors import Misconfigured


def proxy_for(url: str) -> str | None:
    """Its address, if there is one for this URL; none is for this very machine. Raises Misconfigured."""
    parts = urlsplit(url)
    proxies = getproxies_environment()
    proxy = proxies.get(parts.scheme)
    if not proxy or _is_here(parts.hostname or "") or proxy_bypass(parts.netloc):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if not _usable(proxy):
        variable = f"{parts.scheme.upper()}_PROXY"
        raise Misconfigured(f"{variable} is not a proxy that can be used: it looks like http://host:port")
    return proxy


def _is_here(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _usable(proxy: str) -> bool:
    try:
        parts = urlsplit(proxy)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
