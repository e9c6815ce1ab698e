"""Every example in the docs is a working file."""

from pathlib import Path

import pytest

from lucius.adapters.config.file import read_config
from lucius.adapters.expressions.expressions import CelTools
from lucius.adapters.protocols.directory import ProtocolsDir, read_protocol

EXAMPLES = Path(__file__).parents[2] / "examples"
TOOLS = CelTools()


@pytest.mark.parametrize("path", sorted((EXAMPLES / "protocols").glob("*.yaml")), ids=lambda path: path.name)
def test_an_example_protocol_is_valid(path: Path) -> None:
    assert read_protocol(path, TOOLS).steps


def test_a_folder_with_the_example_adds_its_request_type_to_the_shipped_ones() -> None:
    source = ProtocolsDir(TOOLS, EXAMPLES / "protocols")
    assert source.problems() == ()
    assert {protocol.request_type for protocol in source.list()} >= {"INVOICE", "OCR", "OCR_EMBEDDING_SIS"}


def test_the_example_config_is_valid() -> None:
    assert read_config(EXAMPLES / "lucius.yaml", dev=True).api_keys
