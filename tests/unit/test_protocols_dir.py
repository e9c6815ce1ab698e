import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lucius.adapters import yaml_with_lines
from lucius.adapters.expressions.expressions import CelTools
from lucius.adapters.protocols import directory
from lucius.adapters.protocols.directory import ProtocolsDir, read_file, read_protocol
from lucius.core.protocol.definition import ProtocolDefinition, digest
from lucius.ports.errors import ProtocolError
from lucius.ports.protocols import ProtocolSource

TOOLS = CelTools()

GOOD = """\
protocol_id: translate
version: 1
request_type: TRANSLATE
aliases: [TR]
steps:
  - step_id: ocr
    step_type: OCR
    service: ocr
  - step_id: translate
    step_type: TRANSLATE
    service: translator
    timeout_ms: 60000
    retry_policy:
      max_attempts: 2
    payload_schema:
      type: object
      properties:
        to: {type: string, default: en}
"""


def write(path: Path, text: str) -> None:
    """Write a file so that the change is seen even within one tick of the file system's clock."""
    text_before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(text_before + 10**9, text_before + 10**9))


def refusal(folder: Path, text: str, name: str = "bad.yaml") -> ProtocolError:
    (folder / name).write_text(text)
    with pytest.raises(ProtocolError) as refused:
        read_protocol(folder / name, TOOLS)
    assert refused.value.file == str(folder / name)
    return refused.value


def test_the_six_shipped_protocols_load_without_a_problem() -> None:
    source: ProtocolSource = ProtocolsDir(TOOLS)
    assert source.problems() == ()
    steps = {protocol.request_type: [step.step_id for step in protocol.steps] for protocol in source.list()}
    assert steps == {
        "EMBEDDING": ["embedding"],
        "EMBEDDING_SIS": ["embedding", "sis"],
        "OCR": ["ocr"],
        "OCR_EMBEDDING": ["ocr", "embedding"],
        "OCR_EMBEDDING_SIS": ["ocr", "embedding", "sis"],
        "SIS": ["sis"],
    }
    for protocol in source.list():
        assert all(step.step_type == step.step_id.upper() and step.service == step.step_id for step in protocol.steps)


@pytest.mark.parametrize("arrow", ["→", "->"])
@pytest.mark.parametrize("request_type", ["OCR_EMBEDDING", "OCR_EMBEDDING_SIS", "EMBEDDING_SIS"])
def test_the_arrow_spellings_are_aliases(request_type: str, arrow: str) -> None:
    protocol = ProtocolsDir(TOOLS).resolve(request_type.replace("_", arrow))
    assert protocol is not None
    assert protocol.request_type == request_type


def test_adding_a_file_adds_a_request_type_to_a_running_server(tmp_path: Path) -> None:
    source = ProtocolsDir(TOOLS, tmp_path)
    assert source.resolve("TRANSLATE") is None
    assert not source.refresh()
    write(tmp_path / "translate.yaml", GOOD)
    assert source.refresh()
    protocol = source.resolve("TR")
    assert protocol is not None
    assert [step.service for step in protocol.steps] == ["ocr", "translator"]
    assert protocol.steps[1].retry_policy.max_attempts == 2
    (tmp_path / "translate.yaml").unlink()
    assert source.refresh()
    assert source.resolve("TRANSLATE") is None


def test_newest_version_serves_unless_another_is_requested(tmp_path: Path) -> None:
    for version in (3, 1, 2):
        write(tmp_path / f"v{version}.yaml", GOOD.replace("version: 1", f"version: {version}"))
    source = ProtocolsDir(TOOLS, tmp_path)
    versions = [source.resolve("TRANSLATE", version) for version in (None, 1, 2, 3)]
    assert [protocol.version for protocol in versions if protocol] == [3, 1, 2, 3]
    assert source.resolve("TRANSLATE", 4) is None


def test_an_operator_replaces_a_shipped_protocol_by_a_higher_version_only(tmp_path: Path) -> None:
    shipped = ProtocolsDir(TOOLS).resolve("OCR")
    mine = GOOD.replace("TRANSLATE", "OCR").replace("protocol_id: translate", "protocol_id: ocr")
    write(tmp_path / "ocr.yaml", mine)
    source = ProtocolsDir(TOOLS, tmp_path)
    assert source.resolve("OCR") == shipped
    (problem,) = source.problems()
    assert "version 1 of OCR is already given by the shipped ocr.yaml" in problem.reason
    assert problem.line == 3
    write(tmp_path / "ocr.yaml", mine.replace("version: 1", "version: 2"))
    source.refresh()
    assert source.problems() == ()
    newest = source.resolve("OCR")
    assert newest is not None
    assert newest.version == 2
    assert source.resolve("OCR", 1) == shipped


def test_json_file_is_read_as_a_protocol_with_line_numbers(tmp_path: Path) -> None:
    value = yaml.safe_load(GOOD)
    (tmp_path / "p.json").write_text(json.dumps(value, indent="\t"))
    (tmp_path / "p.yaml").write_text(GOOD)
    assert digest(read_protocol(tmp_path / "p.json", TOOLS)) == digest(read_protocol(tmp_path / "p.yaml", TOOLS))
    text = json.dumps({**value, "versoin": 1}, indent="\t")
    refused = refusal(tmp_path, text, "bad.json")
    assert refused.line == next(number for number, line in enumerate(text.splitlines(), 1) if "versoin" in line)


def test_good_files_load_at_startup_and_bad_ones_are_problems(tmp_path: Path) -> None:
    write(tmp_path / "a-bad.yaml", "steps: [")
    write(tmp_path / "b-good.yaml", GOOD)
    write(tmp_path / "c-bad.json", '{"a": 1,\n}')
    source = ProtocolsDir(TOOLS, tmp_path)
    assert source.resolve("TRANSLATE") is not None
    assert [(Path(problem.file).name, problem.line) for problem in source.problems()] == [
        ("a-bad.yaml", 1),
        ("c-bad.json", 2),
    ]


def test_last_good_version_of_a_file_stays_in_force_after_a_bad_change(tmp_path: Path) -> None:
    file = tmp_path / "translate.yaml"
    write(file, GOOD)
    source = ProtocolsDir(TOOLS, tmp_path)
    before = source.resolve("TRANSLATE")
    write(file, GOOD.replace("timeout_ms: 60000", "timeout_ms: soon"))
    assert source.refresh()
    assert source.resolve("TRANSLATE") is before
    (problem,) = source.problems()
    assert (problem.line, problem.reason) == (12, "Expected int | null, got str at steps.1.timeout_ms")
    write(file, GOOD.replace("timeout_ms: 60000", "timeout_ms: 1000"))
    source.refresh()
    mended = source.resolve("TRANSLATE")
    assert mended is not None
    assert mended.steps[1].timeout_ms == 1000
    assert source.problems() == ()


def test_conflicting_file_is_refused_until_the_other_is_removed(tmp_path: Path) -> None:
    write(tmp_path / "b.yaml", GOOD)
    source = ProtocolsDir(TOOLS, tmp_path)
    write(tmp_path / "a.yaml", GOOD.replace("service: ocr", "service: other"))
    source.refresh()
    (problem,) = source.problems()
    assert problem.file == str(tmp_path / "a.yaml")
    assert source.resolve("TRANSLATE") == read_protocol(tmp_path / "b.yaml", TOOLS)
    (tmp_path / "b.yaml").unlink()
    source.refresh()
    assert source.problems() == ()
    assert source.resolve("TRANSLATE") == read_protocol(tmp_path / "a.yaml", TOOLS)


def test_file_changed_into_a_conflict_keeps_its_earlier_version(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", GOOD)
    write(tmp_path / "b.yaml", GOOD.replace("version: 1", "version: 2"))
    source = ProtocolsDir(TOOLS, tmp_path)
    write(tmp_path / "b.yaml", GOOD)
    source.refresh()
    assert source.resolve("TRANSLATE", 2) is not None
    assert len(source.problems()) == 1


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("aliases: [TR]", "aliases: [OCR]", "the name OCR already stands for OCR"),
        ("aliases: [TR]", "aliases: [OCR->EMBEDDING]", "the name OCR->EMBEDDING already stands for OCR_EMBEDDING"),
        ("protocol_id: translate", "protocol_id: ocr", "the protocol_id ocr already belongs to OCR"),
    ],
)
def test_name_of_another_request_type_is_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    write(tmp_path / "p.yaml", GOOD.replace(old, new))
    source = ProtocolsDir(TOOLS, tmp_path)
    assert [problem.reason for problem in source.problems()] == [reason]
    assert source.resolve("TRANSLATE") is None


def test_two_versions_of_a_request_type_share_their_protocol_id(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", GOOD)
    write(tmp_path / "b.yaml", GOOD.replace("version: 1", "version: 2").replace("_id: translate\nv", "_id: other\nv"))
    assert [problem.reason for problem in ProtocolsDir(TOOLS, tmp_path).problems()] == [
        "TRANSLATE already has the protocol_id translate"
    ]


BAD: list[tuple[str, str, int, str]] = [
    ("version: 1", "versoin: 1", 2, "unknown field versoin"),
    ("version: 1", "version: one", 2, "Expected int, got str at version"),
    ("version: 1", "version: 0", 2, "Expected int >= 1 at version"),
    ("version: 1", "version: 1\nversion: 2", 3, "the key version is given twice"),
    ("version: 1", "version: 1\n1: x", 3, "must be text"),
    ("version: 1", "version: !!python/object:os.system 1", 2, "has no place here"),
    ("version: 1", "version: .nan", 2, "no NaN"),
    ("request_type: TRANSLATE\n", "", 1, "missing required field request_type"),
    ("TRANSLATE\na", "TRANS LATE\na", 3, "matching regex"),
    ("- step_id: ocr\n    step_type: OCR", '- step_id: "ocr\\n"\n    step_type: OCR', 6, "matching regex"),
    ("step_id: translate", "step_id: ocr", 9, "the step id ocr is used twice"),
    ("step_id: translate", "step_id: Translate", 9, "matching regex"),
    ("step_id: translate", "step_id: " + "a" * 65, 9, "matching regex"),
    ("timeout_ms: 60000", "timeout: 60000", 12, "unknown field timeout at steps.1"),
    ("timeout_ms: 60000", "timeout_ms: 0", 12, "Expected int >= 1"),
    ("timeout_ms: 60000", "timeout_ms: 99999999999999", 12, "Expected int <="),
    ("timeout_ms: 60000", "kind: dance", 12, "Invalid enum value 'dance'"),
    ("timeout_ms: 60000", "kind: wait", 12, "a wait needs a member wait"),
    ("timeout_ms: 60000", "on_failure: ocrr", 12, "there is no step ocrr; did you mean ocr?"),
    ("timeout_ms: 60000", "compensation: {step_id: undo, kind: notify}", 12, "a notify needs a member notify"),
    ("max_attempts: 2", "max_attempts: 0", 14, "Expected int >= 1 at steps.1.retry_policy.max_attempts"),
    ("max_attempts: 2", "max_delay_ms: 10", 14, "max_delay_ms (10) is less than initial_delay_ms (5000)"),
    ("max_attempts: 2", "ack_backoff_ms: [1, -1]", 14, "Expected int >= 0"),
    ("max_attempts: 2", "ack_backoff_ms: []", 14, "length >= 1"),
    ("type: object", "type: objekt", 16, "is not a JSON Schema"),
    ("type: object", "$ref: https://example.com/schema.json", 15, "is not a JSON Schema"),
    ("type: object", "pattern: '('", 16, "is not a JSON Schema"),
    ("default: en", "default: 7", 18, "the default of to doesn't fit"),
    ("aliases: [TR]", "input_schema: {type: objekt}", 4, "is not a JSON Schema"),
    ("aliases: [TR]", "output_schema: {$ref: 'https://example.com/x'}", 4, "is not a JSON Schema"),
    ("aliases: [TR]", "output_schema: 7", 4, "Expected object, got int at output_schema"),
    ("steps:\n", "steps: [\n", 6, "is not YAML"),
]


@pytest.mark.parametrize(("old", "new", "line", "reason"), BAD, ids=[bad[1][:40] for bad in BAD])
def test_a_bad_file_is_refused_with_file_line_and_reason(
    tmp_path: Path, old: str, new: str, line: int, reason: str
) -> None:
    assert old in GOOD
    refused = refusal(tmp_path, GOOD.replace(old, new, 1))
    assert reason in refused.reason
    assert refused.line == line
    assert str(refused).startswith(f"{tmp_path / 'bad.yaml'}:{line}: ")


# Five levels of aliases, fifty each: a small file that expands to hundreds of millions of values.
MULTIPLYING = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 50}]\n" for n in range(1, 6))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("just text", "Expected object, got str"),
        ("[]", "Expected object, got array"),
        ("a: 1\n---\nb: 2\n", "is not YAML"),
        ("steps: []\nprotocol_id: x\nversion: 1\nrequest_type: X", "length >= 1"),
        ("[" * 5000, "nested too deeply"),
        ("a: &a [1]\nb: *nope", "undefined alias"),
        ("a: &a\n  b: *a", "nested too deeply"),
        (MULTIPLYING, "too large"),
        ("\x07", "is not YAML"),
    ],
    ids=range(11),
)
def test_file_that_is_no_protocol_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refusal(tmp_path, text).reason


def test_more_than_two_hundred_steps_are_refused(tmp_path: Path) -> None:
    def steps(count: int) -> str:
        head = "protocol_id: x\nversion: 1\nrequest_type: X\nsteps:\n"
        return head + "".join(f"  - {{step_id: s{n}, step_type: S, service: s}}\n" for n in range(count))

    assert "length <= 200" in refusal(tmp_path, steps(201)).reason
    (tmp_path / "ok.yaml").write_text(steps(200))
    assert len(read_protocol(tmp_path / "ok.yaml", TOOLS).steps) == 200


def test_unreadable_files_and_folders_are_problems_not_crashes(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "huge.yaml").write_text("# " + "x" * 1024 * 1024)
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "dangling.yaml").symlink_to(tmp_path / "nowhere")
    (tmp_path / ".hidden.yaml").write_text("nonsense: [")
    (tmp_path / "notes.txt").write_text("nonsense: [")
    os.mkfifo(tmp_path / "pipe.yaml")
    source = ProtocolsDir(TOOLS, tmp_path, tmp_path / "missing")
    reasons = {Path(problem.file).name: problem.reason for problem in source.problems()}
    assert reasons == {
        "binary.yaml": "is not UTF-8 (byte 0)",
        "dangling.yaml": "can't be read: No such file or directory",
        "huge.yaml": "is larger than 1048576 bytes",
        "missing": "can't be read: No such file or directory",
    }
    assert source.resolve("OCR") is not None


def included(schema: str) -> str:
    head = "protocol_id: x\nversion: 1\nrequest_type: X\nsteps:\n"
    return f"{head}  - step_id: a\n    step_type: A\n    service: a\n    payload_schema: {schema}\n"


def test_schema_from_a_file_is_inlined_and_its_changes_are_applied(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    write(tmp_path / "schemas" / "a.yaml", "type: object\n")
    write(tmp_path / "x.yaml", included("schemas/a.yaml"))
    source = ProtocolsDir(TOOLS, tmp_path)

    def schema() -> dict[str, Any]:
        protocol = source.resolve("X")
        assert isinstance(protocol, ProtocolDefinition)
        return protocol.steps[0].payload_schema

    assert schema() == {"type": "object"}
    write(tmp_path / "schemas" / "a.yaml", "type: object\nrequired: [b]\n")
    source.refresh()
    assert schema() == {"type": "object", "required": ["b"]}
    write(tmp_path / "schemas" / "a.yaml", "type: object\nrequired: 7\n")
    source.refresh()
    assert schema() == {"type": "object", "required": ["b"]}
    (problem,) = source.problems()
    assert (problem.file, problem.line) == (str(tmp_path / "schemas" / "a.yaml"), 2)


NESTED = """\
protocol_id: x
version: 1
request_type: X
input_schema: schemas/a.yaml
output_schema: schemas/a.yaml
steps:
  - step_id: all
    kind: map
    map:
      items: input.pages
      steps:
        - step_id: both
          kind: parallel
          parallel:
            branches:
              left:
                - step_id: a
                  step_type: A
                  service: a
                  payload_schema: schemas/a.yaml
  - step_id: b
    step_type: B
    service: b
    compensation:
      step_id: c
      step_type: C
      service: c
      payload_schema: schemas/a.yaml
"""


def test_schemas_from_files_are_inlined_at_every_place(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "a.yaml").write_text("type: object\n")
    (tmp_path / "x.yaml").write_text(NESTED)
    protocol = read_protocol(tmp_path / "x.yaml", TOOLS)
    schemas = [place.spec.payload_schema for place in protocol.plan.places.values() if place.spec.kind == "task"]
    assert schemas == [{"type": "object"}, {}, {"type": "object"}]
    assert protocol.input_schema == protocol.output_schema == {"type": "object"}


@pytest.mark.parametrize("line", [4, 5, 20, 28])
def test_invalid_schema_is_refused_with_its_line_at_every_place(tmp_path: Path, line: int) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "a.yaml").write_text("type: object\n")
    (tmp_path / "schemas" / "b.yaml").write_text("type: object\nrequired: 7\n")
    lines = NESTED.splitlines()
    start, _, _ = lines[line - 1].partition(": ")
    assert refusal(tmp_path, "\n".join([*lines[: line - 1], f"{start}: {{required: 7}}", *lines[line:]])).line == line
    (tmp_path / "bad.yaml").write_text("\n".join([*lines[: line - 1], f"{start}: schemas/b.yaml", *lines[line:]]))
    with pytest.raises(ProtocolError) as refused:
        read_protocol(tmp_path / "bad.yaml", TOOLS)
    assert (refused.value.file, refused.value.line) == (str(tmp_path / "schemas" / "b.yaml"), 2)
    assert refusal(tmp_path, "\n".join([*lines[: line - 1], f"{start}: schemas/no.yaml", *lines[line:]])).line == line


def test_unknown_name_in_an_expression_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "a.yaml").write_text("type: object\n")
    refused = refusal(tmp_path, NESTED.replace("items: input.pages", "items: inputs.pages"))
    assert refused.line == 10
    assert refused.reason == "there is nothing called inputs here; did you mean input?"


def test_protocol_with_a_warning_is_listed_and_serves(tmp_path: Path) -> None:
    write(tmp_path / "x.yaml", GOOD + "  - step_id: sign\n    kind: wait\n    wait: {signal: signed}\n")
    file = read_file(tmp_path / "x.yaml", TOOLS)
    assert file.line == 3
    assert [(warning.line, "without timeout_ms" in warning.reason) for warning in file.warnings] == [(19, True)]
    assert read_file(tmp_path / "x.yaml", TOOLS).protocol == ProtocolsDir(TOOLS, tmp_path).resolve("TRANSLATE")


@pytest.mark.parametrize("name", ["../secret.yaml", "/etc/passwd", "schemas/../../x.yaml", "a.yaml", "schemas/no.yaml"])
def test_schema_file_outside_the_schemas_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "schemas").mkdir()
    for other in ("secret.yaml", "passwd", "x.yaml", "a.yaml"):
        (tmp_path / "schemas" / other).write_text("type: object")
    refused = refusal(tmp_path, included(name))
    assert refused.line == 8
    assert "schemas/x.yaml" in refused.reason or "there is no file" in refused.reason


def test_schema_with_an_external_reference_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    refused = refusal(tmp_path, included(f"{{$ref: 'file://{tmp_path}/other.json'}}"))
    assert "is not a JSON Schema" in refused.reason


def test_a_date_in_yaml_is_plain_text(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(GOOD + "title: 2024-01-01\n")
    assert read_protocol(tmp_path / "x.yaml", TOOLS).title == "2024-01-01"


def test_each_read_of_a_file_returns_its_own_value(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    write(path, GOOD)
    yaml_with_lines.read(path).value["steps"].clear()
    assert len(yaml_with_lines.read(path).value["steps"]) == 2


def test_unchanged_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.yaml", GOOD)
    source = ProtocolsDir(TOOLS, tmp_path)
    reads: list[Path] = []
    original = yaml_with_lines.read

    def read(path: Path) -> yaml_with_lines.Marked:
        reads.append(path)
        return original(path)

    monkeypatch.setattr(yaml_with_lines, "read", read)
    assert not source.refresh()
    write(tmp_path / "b.yaml", GOOD.replace("version: 1", "version: 2"))
    assert source.refresh()
    assert reads == [tmp_path / "b.yaml"]


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.binary())
def test_random_content_is_refused(tmp_path_factory: pytest.TempPathFactory, content: str | bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ProtocolError):
        read_protocol(file, TOOLS)


def test_all_structural_faults_of_a_file_are_reported_with_their_lines(tmp_path: Path) -> None:
    text = """\
protocol_id: many
version: one
request_typ: MANY
steps:
  - step_id: call
    kind: external_cal
    external_call: {method: PSOT, url: https://x}
  - step_id: both
    kind: parallel
    parallel: {branches: {a: [{stepid: x, service: s, step_type: S}]}, join: none}
policies: {compensation: automatic}
"""
    (tmp_path / "many.yaml").write_text(text)
    (problem,) = ProtocolsDir(CelTools(), tmp_path, shipped=False).problems()
    kinds = "task, decision, wait, external_call, notify, human_approval, parallel, map"
    assert [(fault.line, fault.reason) for fault in problem.everything] == [
        (2, "Expected int, got str at version"),
        (3, "unknown field request_typ; did you mean request_type?"),
        (
            6,
            "Invalid enum value 'external_cal' at steps.0.kind; it can be " + kinds + "; did you mean external_call?",
        ),
        (
            7,
            "Invalid enum value 'PSOT' at steps.0.external_call.method; it can be GET, POST, PUT, PATCH, DELETE;"
            " did you mean POST?",
        ),
        (10, "unknown field stepid at steps.1.parallel.branches.a.0; did you mean step_id?"),
        (10, "missing required field step_id at steps.1.parallel.branches.a.0"),
        (10, "Invalid enum value 'none' at steps.1.parallel.join; it can be fail_fast, collect"),
        (11, "Invalid enum value 'automatic' at policies.compensation; it can be auto, manual; did you mean auto?"),
        (1, "missing required field request_type"),
    ]


def test_all_findings_of_a_file_are_reported(tmp_path: Path) -> None:
    steps = "\n".join(f"  - {{step_id: s{n}, step_type: S, service: s, on_failure: nowhere{n}}}" for n in range(3))
    (tmp_path / "bad.yaml").write_text(f"protocol_id: bad\nversion: 1\nrequest_type: BAD\nsteps:\n{steps}\n")
    (problem,) = ProtocolsDir(CelTools(), tmp_path, shipped=False).problems()
    assert [fault.line for fault in problem.everything] == [5, 6, 7]


def test_all_duplicate_keys_and_invalid_values_of_a_file_are_reported(tmp_path: Path) -> None:
    text = GOOD.replace("version: 1", "version: 1\nversion: .nan").replace("to: {type", "1: {}\n        to: {to: 1, to")
    assert [(fault.line, fault.reason) for fault in refusal(tmp_path, text).everything] == [
        (3, "the key version is given twice"),
        (3, "JSON has no NaN and no infinity"),
        (19, "the key '1' must be text: put it in quotes"),
        (20, "the key to is given twice"),
    ]


def test_every_schema_file_that_is_missing_is_reported_with_the_other_faults(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "twice.yaml").write_text("type: object\ntype: object\n")
    text = """\
protocol_id: many
version: 1
request_type: MANY
input_schema: schemas/none.yaml
output_schema: ../x.yaml
steps:
  - {step_id: a, step_type: S, service: s, payload_schema: schemas/twice.yaml}
  - {step_id: b, step_type: S, servcie: s, payload_schema: schemas/twice.yaml}
"""
    assert [(fault.line, fault.reason) for fault in refusal(tmp_path, text, "many.yaml").everything] == [
        (4, "there is no file schemas/none.yaml"),
        (5, "output_schema must be a JSON Schema or name a file as in schemas/x.yaml: ../x.yaml"),
        (2, "the key type is given twice"),
        (8, "unknown field servcie at steps.1; did you mean service?"),
    ]


def test_all_faults_of_a_schema_are_reported(tmp_path: Path) -> None:
    schema = """\
      type: objekt
      properties:
        from: {type: [strng, 'null'], minLength: "3"}
        to: {pattern: '('}
      required: to
"""
    refused = refusal(tmp_path, GOOD.partition("      type: object")[0] + schema)
    types = "it can be array, boolean, integer, null, number, object, string"
    assert sorted((fault.line or 0, fault.reason) for fault in refused.everything) == [
        (16, f"is not a JSON Schema: there is no type 'objekt'; {types}; did you mean object?"),
        (18, 'is not a JSON Schema: "3" is not of type "integer"'),
        (18, f"is not a JSON Schema: there is no type 'strng'; {types}; did you mean string?"),
        (19, "is not a JSON Schema: the pattern ( is no regular expression, or is far too large for one"),
        (20, 'is not a JSON Schema: "to" is not of type "array"'),
    ]


def test_mistyped_keyword_of_a_schema_is_warned_about(tmp_path: Path) -> None:
    more = """\
        from: {anyOf: [{typ: string}, {enumNames: [a], x-kind: b, nullable: true}], items: {minimun: 1}}
        requird: {default: {requird: 1}, type: object}
      requird: [to]
"""
    (tmp_path / "x.yaml").write_text(GOOD + more)
    said = "{} is no keyword of JSON Schema and has no effect; did you mean {}?"
    assert sorted(
        (warning.line or 0, warning.reason) for warning in read_file(tmp_path / "x.yaml", TOOLS).warnings
    ) == [
        (19, said.format("minimun", "minimum")),
        (19, said.format("typ", "type")),
        (21, said.format("requird", "required")),
    ]


def test_source_answers_from_the_old_state_until_a_refresh_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.yaml", GOOD)
    source = ProtocolsDir(TOOLS, tmp_path, shipped=False)
    (protocol,) = source.list()
    seen_inside = []
    settle = directory.settle_file

    def settle_and_look(*args: Any) -> None:
        settle(*args)
        seen_inside.append((source.list(), source.problems(), source.place(protocol)))

    before = source.list(), source.problems(), source.place(protocol)
    monkeypatch.setattr(directory, "settle_file", settle_and_look)
    write(tmp_path / "b.yaml", GOOD)
    write(tmp_path / "a.yaml", "protocol_id: [")
    assert source.refresh()
    assert seen_inside == [before, before]
    assert source.problems()
