"""Proxy settings from the environment: HTTP_PROXY, HTTPS_PROXY and NO_PROXY.

aiohttp could read these itself, but would then also read ~/.netrc, whose password would replace the API key.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from lucius.client.errors import Misconfigured


def proxy_for(url: str) -> str | None:
    """Return the proxy for a URL, None if there is none or the host is this machine. Raises Misconfigured."""
    parts = urlsplit(url)
    proxies = getproxies_environment()
    proxy = proxies.get(parts.scheme)
    if not proxy or _is_loopback(parts.hostname or "") or proxy_bypass(parts.netloc):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if not _is_proxy_url(proxy):
        variable = f"{parts.scheme.upper()}_PROXY"
        raise Misconfigured(f"{variable} is not a proxy that can be used: it looks like http://host:port")
    return proxy


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _is_proxy_url(proxy: str) -> bool:
    try:
        parts = urlsplit(proxy)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
