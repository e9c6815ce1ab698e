"""Every option that takes JSON refuses what an encoder would change before the server sees it."""

from pathlib import Path

import pytest

from tests.integration.cli.support import Stub, at

INVOICE = str(Path(__file__).parents[3] / "examples" / "protocols" / "invoice_approval.yaml")
SUBMIT = ("submit", "OCR", "--tenant", "acme", "--input", "blob://in/a", "--output", "blob://out/a")
SIGNAL = ("jobs", "signal", "j-1", "go")
SKIP = ("review", "skip", "j-1~run1", "--reason", "x")
SIMULATE = ("simulate", INVOICE)
CONFORMANCE = ("conformance", "--service-command", "true")
OPTIONS = [
    (*SUBMIT, "--payload", "JSON"),
    (*SUBMIT, "--payload", "@FILE"),
    (*SIGNAL, "--payload", "JSON"),
    (*SIGNAL, "--payload", "@FILE"),
    (*SKIP, "--result", "JSON"),
    (*SKIP, "--result", "@FILE"),
    (*SIMULATE, "--input", "JSON"),
    (*SIMULATE, "--input", "@FILE"),
    (*SIMULATE, "--result", "extract=JSON"),
    (*SIMULATE, "--respond", "post=200:JSON"),
    (*SIMULATE, "--guard", "post=200:JSON"),
    (*SIMULATE, "--signal", "go=JSON"),
    (*CONFORMANCE, "--payload", "JSON"),
    (*CONFORMANCE, "--payload", "@FILE"),
    (*CONFORMANCE, "--slow-payload", "JSON"),
    (*CONFORMANCE, "--bad-payload", "JSON"),
]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"ocr": {"pages": 1, "dpi": 2, "pages": 3}}', 'an object has the member "pages" twice'),
        ('{"ocr": NaN}', "NaN is no JSON number"),
        ('{"ocr": -Infinity}', "-Infinity is no JSON number"),
        ('{"ocr": [1e400]}', "1e400 is larger than a JSON number may be"),
        ('{"ocr": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    ],
    ids=["duplicate", "nan", "infinity", "overflow", "deep"],
)
@pytest.mark.parametrize("command", OPTIONS, ids=lambda command: " ".join([command[0], *command[-2:]]))
def test_json_that_would_change_on_the_way_is_refused(
    stub: Stub, tmp_path: Path, command: tuple[str, ...], text: str, reason: str
) -> None:
    (tmp_path / "given.json").write_text(text)
    *words, option, value = command
    result = at(stub, *words, option, value.replace("JSON", text).replace("@FILE", "@given.json"))
    where = "given.json" if value == "@FILE" else option
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"lucius: {where} is not JSON: ")
    assert reason in result.stderr
    assert len(result.stderr) < 300
    assert stub.asked == []
