import time
from typing import Any

import pytest

from lucius.adapters.ledger.memory.versions import MemoryVersions
from lucius.adapters.protocols.directory import ProtocolsDir
from lucius.core.model.decision import NoTools
from lucius.core.protocol.definition import Map, Parallel, ProtocolDefinition, StepSpec, Wait
from lucius.core.protocol.validation.protocol import Finding
from lucius.ports.clock import SystemClock
from lucius.usecases.catalog.catalog import Catalog
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.submit import payloads as module
from lucius.usecases.submit.payloads import Payloads
from lucius.usecases.submit.submit import choose_protocol


async def find_nothing(_: ProtocolDefinition) -> list[Finding]:
    return []


SHIPPED = Catalog(ProtocolsDir(NoTools()), MemoryVersions(), SystemClock(), find_nothing)


def fill(request_type: str, payload: dict[str, Any]) -> dict[str, Any]:
    return Payloads().fill(choose_protocol(SHIPPED, request_type), payload)


def faults(request_type: str, payload: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(Rejected) as refused:
        fill(request_type, payload)
    assert refused.value.code is RejectCode.INVALID_PAYLOAD
    return {fault.pointer: fault.message for fault in refused.value.faults}


def protocol(schema: dict[str, Any]) -> ProtocolDefinition:
    step = StepSpec(step_id="a", step_type="A", service="a", payload_schema=schema)
    return ProtocolDefinition(protocol_id="x", version=1, request_type="X", steps=(step,))


def test_an_empty_payload_gets_every_default() -> None:
    assert fill("OCR", {}) == {"ocr": {"language": "en", "dpi": 300}}
    assert fill("EMBEDDING", {})["embedding"]["chunk_size"] == 800


def test_values_of_the_client_override_defaults() -> None:
    filled = fill("OCR_EMBEDDING_SIS", {"ocr": {"dpi": 72}, "sis": {"prompt_set": ["Who?"]}})
    assert filled["ocr"] == {"language": "en", "dpi": 72}
    assert filled["embedding"]["model"] == "auto"
    assert filled["sis"]["prompt_set"] == ["Who?"]
    assert list(filled) == ["ocr", "embedding", "sis"]


def test_payload_of_the_client_is_not_modified() -> None:
    payload: dict[str, Any] = {"ocr": {"dpi": 72}}
    fill("OCR", payload)
    assert payload == {"ocr": {"dpi": 72}}


@pytest.mark.parametrize("payload", [{}, {"sis": {}}, {"sis": {"top_k": 1}}])
def test_a_missing_prompt_set_is_named_by_its_pointer(payload: dict[str, Any]) -> None:
    assert faults("SIS", payload) == {"/payload/sis/prompt_set": "required member is missing"}


def test_all_faults_of_all_steps_are_named() -> None:
    found = faults(
        "OCR_EMBEDDING_SIS",
        {"ocr": {"dpi": 10, "pages": [1, 0, "x"]}, "embedding": [], "sis": {"prompt_set": ["", 7]}, "extra/1": {}},
    )
    assert list(found) == [
        "/payload/ocr/dpi",
        "/payload/ocr/pages/1",
        "/payload/ocr/pages/2",
        "/payload/embedding",
        "/payload/sis/prompt_set/0",
        "/payload/sis/prompt_set/1",
        "/payload/extra~11",
    ]
    assert found["/payload/ocr/dpi"] == "the value is less than the minimum of 72"
    assert "its steps: ocr, embedding, sis" in found["/payload/extra~11"]


def test_a_member_for_a_step_of_another_protocol_is_refused() -> None:
    assert list(faults("OCR", {"sis": {"prompt_set": ["Who?"]}})) == ["/payload/sis"]


@pytest.mark.parametrize(
    ("step", "typo", "meant"),
    [("ocr", "langauge", "language"), ("embedding", "chunk_sise", "chunk_size"), ("sis", "topk", "top_k")],
)
def test_unknown_member_of_a_shipped_step_is_refused_with_the_nearest_name(step: str, typo: str, meant: str) -> None:
    given = {typo: 1, **({"prompt_set": ["Who?"]} if step == "sis" else {})}
    assert faults(step.upper(), {step: given}) == {f"/payload/{step}/{typo}": f"unknown member; did you mean {meant}?"}


def test_wrong_enum_value_of_a_payload_lists_the_right_ones() -> None:
    found = faults("EMBEDDING", {"embedding": {"chunk_by": "sentence"}})
    assert found == {"/payload/embedding/chunk_by": 'the value is not one of "size", "sentences" or "paragraphs"'}


def test_fault_message_contains_no_value_of_the_client() -> None:
    assert not any("hunter2" in message for message in faults("OCR", {"ocr": {"dpi": "hunter2"}}).values())


@pytest.mark.parametrize("prompts", [[], ["x"] * 101, "Who?", [None]])
def test_a_prompt_set_is_one_to_a_hundred_prompts(prompts: Any) -> None:
    assert faults("SIS", {"sis": {"prompt_set": prompts}})
    assert fill("SIS", {"sis": {"prompt_set": ["x"] * 100}})


def test_a_member_that_a_strict_schema_forbids_is_named() -> None:
    strict = protocol({"additionalProperties": False, "properties": {"a": True}})
    with pytest.raises(Rejected) as refused:
        Payloads().fill(strict, {"a": {"a": 1, "b": 2, "c": 3}})
    assert [fault.pointer for fault in refused.value.faults] == ["/payload/a/b", "/payload/a/c"]


def test_refusal_of_many_wrong_items_below_a_long_name_is_short() -> None:
    strict = protocol({"additionalProperties": {"items": False}})
    with pytest.raises(Rejected) as refused:
        Payloads().fill(strict, {"a": {"b" * 2_000: [1] * 500}})
    assert len(refused.value.faults) == 50
    assert max(len(fault.pointer) for fault in refused.value.faults) == 1_024
    assert refused.value.detail.endswith("(and 499 more)")


def test_a_step_without_a_schema_takes_any_object() -> None:
    assert Payloads().fill(protocol({}), {"a": {"x": [1]}}) == {"a": {"x": [1]}}


def test_numbers_of_any_size_are_validated() -> None:
    assert list(faults("OCR", {"ocr": {"dpi": 2**200}})) == ["/payload/ocr/dpi"]
    assert fill("OCR", {"ocr": {"dpi": 300.0}})["ocr"]["dpi"] == 300


def test_refusal_of_hundreds_of_faults_is_short() -> None:
    with pytest.raises(Rejected) as refused:
        fill("OCR", {"ocr": {"pages": [0] * 500}})
    assert len(refused.value.faults) == 50
    assert "499 more" in refused.value.detail


def whole(schema: dict[str, Any], *steps: StepSpec) -> ProtocolDefinition:
    steps = steps or (StepSpec(step_id="a", step_type="A", service="a"),)
    return ProtocolDefinition(protocol_id="x", version=1, request_type="X", steps=steps, input_schema=schema)


def refusal(protocol: ProtocolDefinition, payload: dict[str, Any]) -> list[str]:
    with pytest.raises(Rejected) as refused:
        Payloads().fill(protocol, payload)
    return [fault.pointer for fault in refused.value.faults]


def test_input_schema_decides_about_members_that_are_no_steps() -> None:
    open_, closed = whole({"type": "object"}), whole({"additionalProperties": False, "properties": {"n": True}})
    assert Payloads().fill(open_, {"n": 1, "other": 2}) == {"n": 1, "other": 2, "a": {}}
    assert Payloads().fill(closed, {"n": 1, "a": {"x": 1}}) == {"n": 1, "a": {"x": 1}}
    assert refusal(closed, {"n": 1, "other/1": 2}) == ["/payload/other~11"]
    assert refusal(whole({"unevaluatedProperties": False}), {"a": {}, "b": 1}) == ["/payload/b"]


def test_input_schema_validates_the_client_payload_and_fills_its_defaults() -> None:
    schema = {"required": ["n"], "properties": {"n": {"type": "integer", "default": 7}, "a": {"default": {"x": 1}}}}
    steps = StepSpec(step_id="a", payload_schema={"properties": {"x": {"default": 0}, "y": {"default": 2}}})
    payload: dict[str, Any] = {}
    assert Payloads().fill(whole(schema, steps), payload) == {"n": 7, "a": {"x": 1, "y": 2}}
    assert payload == {}
    assert refusal(whole(schema, steps), {"n": "seven", "a": []}) == ["/payload/n", "/payload/a"]
    assert refusal(whole({"required": ["a"]}), {}) == ["/payload/a"]


def test_faults_of_input_schema_and_step_schema_are_named_without_values() -> None:
    protocol = whole(
        {"properties": {"n": {"type": "integer"}}}, StepSpec(step_id="a", payload_schema={"required": ["x"]})
    )
    with pytest.raises(Rejected) as refused:
        Payloads().fill(protocol, {"n": "hunter2"})
    assert [fault.pointer for fault in refused.value.faults] == ["/payload/n", "/payload/a/x"]
    assert "hunter2" not in str([fault.message for fault in refused.value.faults])


def test_only_tasks_have_payload_members_at_any_depth() -> None:
    schema = {"properties": {"n": {"default": 1}}}
    task = StepSpec(step_id="inner", payload_schema=schema)
    steps = (
        StepSpec(step_id="wait", kind="wait", wait=Wait(duration_ms=1)),
        StepSpec(step_id="map", kind="map", map=Map(items="input", steps=(task,))),
        StepSpec(step_id="both", kind="parallel", parallel=Parallel(branches={"l": (StepSpec(step_id="left"),)})),
        StepSpec(step_id="pay", compensation=StepSpec(step_id="refund", payload_schema=schema)),
    )
    protocol = whole({}, *steps)
    assert Payloads().fill(protocol, {"inner": {"n": 5}}) == {
        "inner": {"n": 5},
        "left": {},
        "pay": {},
        "refund": {"n": 1},
    }
    for name in ("wait", "map", "both"):
        assert refusal(protocol, {name: {}}) == [f"/payload/{name}"]


def test_schemas_are_compiled_once_for_each_content(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    original = module.compile_schemas

    def compile_(protocol: ProtocolDefinition, address: str) -> Any:
        compiled.append(protocol)
        return original(protocol, address)

    monkeypatch.setattr(module, "compile_schemas", compile_)
    payloads = Payloads()
    for _ in range(3):
        payloads.fill(protocol({"type": "object"}), {})
    assert len(compiled) == 1
    payloads.fill(protocol({"type": "object", "required": []}), {})
    assert len(compiled) == 2


def test_schema_cache_is_bounded() -> None:
    payloads = Payloads()
    for n in range(600):
        payloads.fill(protocol({"properties": {"n": {"default": n}}}), {})
    assert payloads.cached_count <= 256


def test_unknown_request_type_is_refused_with_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(Rejected) as refused:
        choose_protocol(SHIPPED, "ocr_embeding")
    assert refused.value.code is RejectCode.UNKNOWN_REQUEST_TYPE
    assert "did you mean OCR_EMBEDDING?" in refused.value.detail
    assert "known: EMBEDDING, EMBEDDING_SIS, OCR, OCR_EMBEDDING, OCR_EMBEDDING_SIS, SIS" in refused.value.detail
    assert refused.value.faults[0].pointer == "/request_type"


def test_unknown_protocol_version_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Rejected) as refused:
        choose_protocol(SHIPPED, "OCR->EMBEDDING", 9)
    assert refused.value.code is RejectCode.UNKNOWN_PROTOCOL_VERSION
    assert refused.value.detail == "OCR_EMBEDDING has no version 9; it has 1"
    assert choose_protocol(SHIPPED, "OCR", 1).version == 1


def test_payload_with_too_many_faults_is_refused_quickly_with_its_first_fault() -> None:
    rows = {"items": {"required": [f"a{i}" for i in range(20)]}}
    before = time.process_time()
    with pytest.raises(Rejected) as refused:
        Payloads().fill(whole({"properties": {"rows": rows}}), {"rows": [{}] * 9_000})
    assert time.process_time() - before < 1
    assert [(fault.pointer, fault.message) for fault in refused.value.faults] == [
        ("/payload/rows/0/a0", "required member is missing"),
        ("/payload", "is too large to say what else doesn't fit its schema"),
    ]
    assert list(faults("SIS", {"sis": {"prompt_set": [1] * 19_000}}))[1:] == ["/payload/sis"]


def test_nearest_name_is_searched_for_the_first_unknown_members_only() -> None:
    made = protocol({"additionalProperties": False, "properties": {f"member_number_{i}": {} for i in range(100)}})
    with pytest.raises(Rejected) as refused:
        Payloads().fill(made, {"a": {f"member_nr_{i}": 1 for i in range(1_000)}})
    assert "999 more" in refused.value.detail
    hints = ["did you mean member_number_" in fault.message for fault in refused.value.faults]
    assert hints == [True] * 5 + [False] * 45
