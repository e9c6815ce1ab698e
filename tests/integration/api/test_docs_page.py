"""The documentation page loads nothing from outside the process."""

import re

from tests.support.api import Api


async def test_root_redirects_to_the_documentation(api: Api) -> None:
    answer = await api.get("/", key="")
    assert (answer.status, answer.headers["location"]) == (307, "docs")


async def test_page_refers_to_no_other_host_and_its_files_are_served(api: Api) -> None:
    page = await api.get("/docs", key="")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    text = page.body.decode()
    assert "//" not in text, "every address is relative"
    addresses = re.findall(r'(?:href|src|data-document)="\./([^"]+)"', text)
    assert len(addresses) == 6
    for address in addresses:
        assert (await api.get(f"/{address}", key="")).status == 200, address


async def test_page_works_under_a_policy_that_forbids_inline_scripts(api: Api) -> None:
    page = await api.get("/docs", key="")
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "default-src 'none';" in policy
    assert re.findall(r"<script(?![^>]*\bsrc=)", page.body.decode()) == []


async def test_assets_are_cached_and_revalidated(api: Api) -> None:
    for name, kind in (
        ("swagger-ui-bundle.js", "text/javascript"),
        ("swagger-ui.css", "text/css"),
        ("favicon-32x32.png", "image/png"),
        ("start.js", "text/javascript"),
    ):
        first = await api.get(f"/docs/{name}", key="")
        assert first.headers["content-type"].startswith(kind)
        assert first.headers["cache-control"] == "public, max-age=86400"
        again = await api.call("GET", f"/docs/{name}", key="", headers={"if-none-match": first.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        assert "content-type" not in again.headers


async def test_only_files_of_the_page_are_served(api: Api) -> None:
    for name in ("__init__.py", "main.py", "..%2fmain.py", "swagger-ui-bundle.js.map"):
        (await api.get(f"/docs/{name}", key="")).problem(404, "NOT_FOUND")


async def test_page_sends_the_document_to_no_validator(api: Api) -> None:
    assert b"validatorUrl: null" in (await api.get("/docs/start.js", key="")).body
