"""Classification of exceptions, which itself never fails."""

import socket
import subprocess
import sys
import urllib.error
from email.message import Message
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from lucius.core.policies import failure_classes
from lucius.worker import (
    CompensationRequired,
    DependencyFailed,
    FailureClass,
    NonRetryable,
    RateLimited,
    Service,
    StepFailure,
    Transient,
    failure_from_status,
)
from lucius.worker.failure import (
    classify_error,
    classify_status,
    format_traceback,
    redact,
    unexpected_failure,
)

ROOT = Path(__file__).resolve().parents[3]


def classify(error: BaseException) -> tuple[str, str, float | None] | None:
    found = classify_error(error, {})
    return None if found is None else (str(found.failure_class), found.code, found.retry_after_seconds)


def test_table_of_failure_classes_is_the_one_of_the_core(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.sdk_failure_classes", "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    other = tmp_path / "failure_classes.py"
    other.write_text("", encoding="utf-8")
    stale = subprocess.run([*command, "--page", str(other)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "is stale" in stale.stderr


def test_http_statuses_are_classified_as_by_the_core() -> None:
    for status in range(100, 600):
        assert str(classify_status(status)) == str(failure_classes.class_of_status(status)), status
        made = failure_from_status(status)
        assert str(failure_classes.class_of_code(made.code)) == str(made.failure_class), status


@pytest.mark.parametrize("word", list(FailureClass))
def test_failure_classes_are_known_to_the_core(word: FailureClass) -> None:
    assert str(failure_classes.failure_class(str(word), "FAILED")) == str(word)


def test_each_failure_type_has_its_class() -> None:
    kinds = [Transient, RateLimited, DependencyFailed, NonRetryable, CompensationRequired]
    assert [str(kind("X").failure_class) for kind in kinds] == [
        "TRANSIENT",
        "RATE_LIMITED",
        "DEPENDENCY_FAILED",
        "NON_RETRYABLE",
        "COMPENSATION_REQUIRED",
    ]


# Exceptions of HTTP clients


def aiohttp_error(status: int, **headers: str) -> aiohttp.ClientResponseError:
    info = aiohttp.RequestInfo(URL("http://x"), "GET", CIMultiDictProxy(CIMultiDict()), URL("http://x"))
    return aiohttp.ClientResponseError(info, (), status=status, message="no", headers=CIMultiDict(headers))


class Response:
    """As in requests and httpx."""

    def __init__(self, status_code: int, headers: dict[str, str]) -> None:
        self.status_code = status_code
        self.headers = headers


class HTTPStatusError(Exception):
    """As in httpx, and HTTPError of requests."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__("no")
        self.response = Response(status, {name.lower(): value for name, value in headers.items()})


class APIStatusError(Exception):
    """As in openai, and the SDKs generated like it."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__("no")
        self.status_code = status
        self.response = Response(status, headers)


class GoogleAPICallError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("no")
        self.code = status


def urllib_error(status: int, **headers: str) -> urllib.error.HTTPError:
    message = Message()
    for name, value in headers.items():
        message[name] = value
    return urllib.error.HTTPError("http://x", status, "no", message, None)


@pytest.mark.parametrize("make", [aiohttp_error, HTTPStatusError, APIStatusError, urllib_error])
def test_http_client_error_is_classified_by_its_status_and_retry_after(make: Any) -> None:
    assert classify(make(429, **{"Retry-After": "7"})) == ("RATE_LIMITED", "HTTP_429", 7.0)
    assert classify(make(503)) == ("TRANSIENT", "HTTP_503", None)
    assert classify(make(404)) == ("NON_RETRYABLE", "HTTP_404", None)
    assert classify(make(301)) == ("NON_RETRYABLE", "HTTP_301", None)


def test_code_attribute_counts_only_if_it_is_an_http_status() -> None:
    assert classify(GoogleAPICallError(503)) == ("TRANSIENT", "HTTP_503", None)
    assert classify(GoogleAPICallError(42)) is None
    assert classify(SystemExit(1)) is None


class TimeoutException(Exception):
    """As in httpx."""


class ReadTimeout(TimeoutException):
    pass


class TransportError(Exception):
    """As in httpx."""


class RequestsConnectionError(OSError):
    """As in requests, which names it like the built-in without deriving from that."""


RequestsConnectionError.__name__ = "ConnectionError"


class Timeout(OSError):
    """As in requests."""


class ConnectTimeout(RequestsConnectionError, Timeout):
    pass


class APIConnectionError(Exception):
    """As in openai."""


class APITimeoutError(APIConnectionError):
    pass


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        aiohttp.ServerTimeoutError(),
        Timeout(),
        ConnectTimeout(),
        ReadTimeout(),
        APITimeoutError(),
    ],
)
def test_timeout_is_transient(error: Exception) -> None:
    assert classify(error) == ("TRANSIENT", "TIMEOUT", None)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        BrokenPipeError(),
        socket.gaierror(-2, "Name or service not known"),
        aiohttp.ServerDisconnectedError(),
        aiohttp.ClientPayloadError(),
        RequestsConnectionError(),
        TransportError(),
        APIConnectionError(),
    ],
)
def test_lost_connection_is_transient(error: Exception) -> None:
    assert classify(error) == ("TRANSIENT", "CONNECTION_FAILED", None)


@pytest.mark.parametrize(
    "error", [KeyError("x"), ValueError(), OSError(28, "full"), FileNotFoundError(), RuntimeError()]
)
def test_unknown_exception_is_retryable_as_unexpected(error: Exception) -> None:
    assert classify(error) is None
    assert unexpected_failure(error).code == "UNEXPECTED_ERROR"
    assert unexpected_failure(error).failure_class is FailureClass.RETRYABLE


def test_unexpected_failure_names_a_file_without_its_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing") as missing:
        (tmp_path / "missing.bin").read_bytes()
    message = unexpected_failure(missing.value).message
    assert message == "FileNotFoundError: [Errno 2] No such file or directory: 'missing.bin'"
    with pytest.raises(OSError, match="missing") as moved:
        (tmp_path / "missing.bin").rename(tmp_path / "other.bin")
    assert str(tmp_path) not in unexpected_failure(moved.value).message


# Chosen by the author


class LibraryError(Exception):
    pass


class Busy(LibraryError):
    pass


class VeryBusy(Busy):
    def __init__(self) -> None:
        super().__init__("not now\nand more")
        self.headers = {"retry-after": "3"}


def test_mapped_exception_uses_its_nearest_class() -> None:
    service = Service("ocr")
    service.map_error(LibraryError, FailureClass.NON_RETRYABLE)
    service.map_error(Busy, FailureClass.RATE_LIMITED, code="BUSY")
    service.map_error(ConnectionResetError, FailureClass.DEPENDENCY_FAILED)
    found = classify_error(VeryBusy(), service.errors)
    assert found is not None
    assert (found.failure_class, found.code, found.message) == (
        FailureClass.RATE_LIMITED,
        "BUSY",
        "VeryBusy: not now",
    )
    assert found.retry_after_seconds == 3
    named = classify_error(LibraryError("x"), service.errors)
    assert named is not None
    assert (named.code, named.failure_class) == ("LibraryError", FailureClass.NON_RETRYABLE)
    ours = classify_error(ConnectionResetError(), service.errors)
    assert ours is not None
    assert ours.failure_class is FailureClass.DEPENDENCY_FAILED


def test_raised_step_failure_is_not_mapped() -> None:
    service = Service("ocr")
    service.map_error(Exception, FailureClass.TRANSIENT)
    raised = NonRetryable("BAD", "input")
    assert classify_error(raised, service.errors) is raised


def test_exception_group_is_classified_by_its_classifiable_member() -> None:
    group = ExceptionGroup("two", [KeyError("x"), ExceptionGroup("one", [NonRetryable("BAD", "input")])])
    assert classify(group) == ("NON_RETRYABLE", "BAD", None)
    assert classify(ExceptionGroup("one", [KeyError("x")])) is None


@pytest.mark.parametrize("what", ["LibraryError", LibraryError(), int])
def test_non_exception_class_cannot_be_mapped(what: Any) -> None:
    with pytest.raises(TypeError, match="class of an exception"):
        Service("ocr").map_error(what, FailureClass.TRANSIENT)


def test_unknown_failure_class_is_refused_where_it_is_written() -> None:
    with pytest.raises(ValueError, match="NO_SUCH"):
        Service("ocr").map_error(LibraryError, "NO_SUCH")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NO_SUCH"):
        StepFailure("X", failure_class="NO_SUCH")  # type: ignore[arg-type]


def test_retry_after_of_a_failure_is_bounded() -> None:
    assert RateLimited("X", retry_after_seconds=float("inf")).retry_after_seconds == 86_400
    assert RateLimited("X", retry_after_seconds=-1).retry_after_seconds == 0
    assert RateLimited("X", retry_after_seconds=float("nan")).retry_after_seconds is None


# Classification never fails


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    @property
    def response(self) -> object:
        raise RuntimeError("no response either")


class Forgetful(NonRetryable):
    def __init__(self) -> None:
        """Skip the base class's `__init__`."""


def test_exception_without_usable_text_is_unexpected() -> None:
    assert classify(Speechless()) is None
    assert unexpected_failure(Speechless()).message == "Speechless: "
    forgetful = classify_error(Forgetful(), {})
    assert forgetful is not None
    assert (forgetful.code, forgetful.message) == ("UNSPECIFIED", "")


def test_code_and_message_are_bounded_and_encodable() -> None:
    failure = StepFailure("C" * 500, "half a character: \udcff" + "m" * 5000)
    assert (len(failure.code), len(failure.message)) == (128, 2000)
    assert failure.message.startswith("half a character: ?m")
    assert StepFailure("", "x").code == "UNSPECIFIED"
    assert StepFailure("X", KeyError("y")).message == "'y'"  # type: ignore[arg-type]


TOKEN = "eyJ0b2tlbiI6MX0.c2lnbmF0dXJl"


def test_token_is_redacted_from_code_message_and_traceback() -> None:
    failure = redact(StepFailure(f"X-{TOKEN}", f"GET /?token={TOKEN} and {TOKEN}"), TOKEN)
    assert (failure.code, failure.message) == ("X-[redacted]", "GET /?token=[redacted] and [redacted]")
    assert TOKEN not in format_traceback(RuntimeError(f"Bearer {TOKEN}"), TOKEN)


@pytest.mark.parametrize("length", [8, 20, len(TOKEN) - 1])
def test_truncated_token_is_redacted(length: int) -> None:
    failure = redact(StepFailure("X", "m" * (2000 - length) + TOKEN), TOKEN)
    assert failure.message.endswith("m[redacted]")


def test_empty_token_redacts_nothing() -> None:
    assert redact(StepFailure("X", "message"), "").message == "message"
    assert "boom" in format_traceback(RuntimeError("boom"), "")
