"""W3C Trace Context: what is valid."""

import pytest

from lucius.contract.trace_context import is_traceparent, is_tracestate, new_traceparent, trace_headers

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("text", [TRACE, TRACE.replace("00-", "01-", 1), "cc" + TRACE[2:] + "-what-comes-later"])
def test_traceparents_of_this_and_later_versions_are_valid(text: str) -> None:
    assert is_traceparent(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mine",
        TRACE.upper(),
        TRACE + "-more",
        TRACE + "\n",
        "ff" + TRACE[2:],
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01",
        TRACE[:-1],
        f"{TRACE},{TRACE}",
    ],
)
def test_malformed_traceparent_is_invalid(text: str) -> None:
    assert not is_traceparent(text)


@pytest.mark.parametrize(
    "text", ["a=1", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "t@v=x y", "a=1, ,b=2", "a/b*c_d=!"]
)
def test_tracestate_is_accepted(text: str) -> None:
    assert is_tracestate(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "a", "=1", "A=1", "a=1,a=2", "a=\x00", "a=b=c", "a=ü", "a=1;b=2\n"),
        "a=" + "x" * 600,
        ",".join(f"k{i}=1" for i in range(33)),
    ],
)
def test_malformed_tracestate_is_rejected(text: str) -> None:
    assert not is_tracestate(text)


def test_traceparent_of_a_later_version_has_at_most_256_characters() -> None:
    later = "cc" + TRACE[2:] + "-"
    assert is_traceparent(later + "x" * (256 - len(later)))
    assert not is_traceparent(later + "x" * (257 - len(later)))
    assert trace_headers(later + "x" * 32_000, "a=1", "order-7") == {"x-correlation-id": "order-7"}


def test_traceparent_of_a_later_version_is_written_as_version_00() -> None:
    later = "01" + TRACE[2:-2] + "03-extra"
    assert trace_headers(later, "a=1", "") == {"traceparent": TRACE, "tracestate": "a=1"}
    assert trace_headers(TRACE[:-2] + "03", None, "") == {"traceparent": TRACE[:-2] + "03"}


def test_new_traceparent_is_valid_and_unique() -> None:
    assert is_traceparent(new_traceparent())
    assert new_traceparent() != new_traceparent()


def test_trace_headers_contain_only_valid_values() -> None:
    assert trace_headers(TRACE, "a=1", "order-7") == {
        "traceparent": TRACE,
        "tracestate": "a=1",
        "x-correlation-id": "order-7",
    }
    assert trace_headers("mine", "a=1", "or\r\nder") == {}
    assert trace_headers(TRACE, "A", "ü") == {"traceparent": TRACE}
    assert trace_headers(None, "a=1", "x" * 300) == {}
