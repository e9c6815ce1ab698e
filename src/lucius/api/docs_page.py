"""Serves the interactive documentation at /docs without fetching anything from outside this process.

Swagger UI's files come from a Python package. The page holds no inline script, so its Content-Security-Policy can
forbid them, and all addresses in it are relative, so it also works behind a proxy that adds a path prefix.
"""

from functools import cache
from hashlib import sha256
from importlib import resources

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

ASSET_PACKAGE = "fastapi_swagger.resources"
MAX_ASSET_AGE_SECONDS = 86_400
ASSETS = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "favicon-32x32.png": "image/png",
}
STARTER = "start.js"
"""The one script of our own. It turns off the badge that would send the document to a validator on the internet."""

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Lucius API</title>
<link rel="icon" href="./docs/favicon-32x32.png">
<link rel="stylesheet" href="./docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<noscript>This page needs JavaScript. The document itself is <a href="./openapi.json">openapi.json</a>.</noscript>
<script src="./docs/swagger-ui-bundle.js"></script>
<script src="./docs/start.js" data-document="./openapi.json"></script>
</body>
</html>
"""
START = b"""SwaggerUIBundle({
  url: document.currentScript.dataset.document,
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
});
"""

router = APIRouter(include_in_schema=False)


@router.get("/")
async def redirect_to_docs() -> Response:
    """Send a browser that opens the bare address to the documentation."""
    return RedirectResponse("docs", 307)


@router.get("/docs")
async def docs() -> Response:
    headers = {"content-security-policy": CONTENT_SECURITY_POLICY, "cache-control": "no-cache"}
    return Response(PAGE, headers=headers, media_type="text/html")


@router.get("/docs/{name}")
def docs_asset(name: str, request: Request) -> Response:
    """Serve one file of the page; a plain function, so that reading the file does not block the event loop."""
    if name not in ASSETS and name != STARTER:
        raise HTTPException(404)
    body, tag = _read_asset(name)
    headers = {"etag": tag, "cache-control": f"public, max-age={MAX_ASSET_AGE_SECONDS}"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    headers["content-type"] = ASSETS.get(name, ASSETS["swagger-ui-bundle.js"])
    headers["x-content-type-options"] = "nosniff"
    return Response(body, headers=headers)


@cache
def _read_asset(name: str) -> tuple[bytes, str]:
    """Return the file's content and its entity tag."""
    body = START if name == STARTER else resources.files(ASSET_PACKAGE).joinpath(name).read_bytes()
    return body, f'"{sha256(body).hexdigest()[:32]}"'
