"""What exceptions stand for, and that saying so can't fail."""

import socket
import urllib.error
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime
from typing import Any

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from lucius.core import classify
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
from lucius.worker.failure import class_of_status, failure_of, redacted, retry_after_seconds, traceback_of, unexpected


def known(error: BaseException) -> tuple[str, str, float | None] | None:
    found = failure_of(error, {})
    return None if found is None else (str(found.failure_class), found.code, found.retry_after_seconds)


def test_a_status_stands_for_what_the_orchestrator_says() -> None:
    for status in range(100, 600):
        assert str(class_of_status(status)) == str(classify.class_of_status(status)), status
        made = failure_from_status(status)
        assert str(classify.class_of_code(made.code)) == str(made.failure_class), status


@pytest.mark.parametrize("word", list(FailureClass))
def test_the_classes_are_the_orchestrators(word: FailureClass) -> None:
    assert str(classify.failure_class(str(word), "FAILED")) == str(word)


def test_each_kind_has_its_class() -> None:
    kinds = [Transient, RateLimited, DependencyFailed, NonRetryable, CompensationRequired]
    assert [str(kind("X").failure_class) for kind in kinds] == [
        "TRANSIENT",
        "RATE_LIMITED",
        "DEPENDENCY_FAILED",
        "NON_RETRYABLE",
        "COMPENSATION_REQUIRED",
    ]


# As HTTP clients raise them


def aiohttp_error(status: int, **headers: str) -> aiohttp.ClientResponseError:
    info = aiohttp.RequestInfo(URL("http://x"), "GET", CIMultiDictProxy(CIMultiDict()), URL("http://x"))
    return aiohttp.ClientResponseError(info, (), status=status, message="no", headers=CIMultiDict(headers))


class Response:
    """As requests and httpx have it."""

    def __init__(self, status_code: int, headers: dict[str, str]) -> None:
        self.status_code = status_code
        self.headers = headers


class HTTPStatusError(Exception):
    """httpx, and requests' HTTPError."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__("no")
        self.response = Response(status, {name.lower(): value for name, value in headers.items()})


class APIStatusError(Exception):
    """openai, and the SDKs generated as it is."""

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
def test_an_http_clients_error_is_known_by_its_status_and_retry_after(make: Any) -> None:
    assert known(make(429, **{"Retry-After": "7"})) == ("RATE_LIMITED", "HTTP_429", 7.0)
    assert known(make(503)) == ("TRANSIENT", "HTTP_503", None)
    assert known(make(404)) == ("NON_RETRYABLE", "HTTP_404", None)
    assert known(make(301)) == ("NON_RETRYABLE", "HTTP_301", None)


def test_a_status_may_be_called_code_and_other_numbers_are_none() -> None:
    assert known(GoogleAPICallError(503)) == ("TRANSIENT", "HTTP_503", None)
    assert known(GoogleAPICallError(42)) is None
    assert known(SystemExit(1)) is None


class TimeoutException(Exception):
    """httpx."""


class ReadTimeout(TimeoutException):
    pass


class TransportError(Exception):
    """httpx."""


class RequestsConnectionError(OSError):
    """requests, whose name for it is the built-in's, though it is none."""


RequestsConnectionError.__name__ = "ConnectionError"


class Timeout(OSError):
    """requests."""


class ConnectTimeout(RequestsConnectionError, Timeout):
    pass


class APIConnectionError(Exception):
    """openai."""


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
def test_a_timeout_is_gone_in_a_moment(error: Exception) -> None:
    assert known(error) == ("TRANSIENT", "TIMEOUT", None)


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
def test_so_is_a_connection_that_was_lost(error: Exception) -> None:
    assert known(error) == ("TRANSIENT", "CONNECTION_FAILED", None)


@pytest.mark.parametrize(
    "error", [KeyError("x"), ValueError(), OSError(28, "full"), FileNotFoundError(), RuntimeError()]
)
def test_anything_else_is_a_surprise(error: Exception) -> None:
    assert known(error) is None
    assert unexpected(error).code == "UNEXPECTED_ERROR"
    assert unexpected(error).failure_class is FailureClass.RETRYABLE


# As the author says


class LibraryError(Exception):
    pass


class Busy(LibraryError):
    pass


class VeryBusy(Busy):
    def __init__(self) -> None:
        super().__init__("not now\nand more")
        self.headers = {"retry-after": "3"}


def test_the_author_maps_exceptions_and_the_nearest_class_counts() -> None:
    service = Service("ocr")
    service.map_error(LibraryError, FailureClass.NON_RETRYABLE)
    service.map_error(Busy, FailureClass.RATE_LIMITED, code="BUSY")
    service.map_error(ConnectionResetError, FailureClass.DEPENDENCY_FAILED)
    found = failure_of(VeryBusy(), service.errors)
    assert found is not None
    assert (found.failure_class, found.code, found.message) == (
        FailureClass.RATE_LIMITED,
        "BUSY",
        "VeryBusy: not now",
    )
    assert found.retry_after_seconds == 3
    named = failure_of(LibraryError("x"), service.errors)
    assert named is not None
    assert (named.code, named.failure_class) == ("LibraryError", FailureClass.NON_RETRYABLE)
    ours = failure_of(ConnectionResetError(), service.errors)
    assert ours is not None
    assert ours.failure_class is FailureClass.DEPENDENCY_FAILED


def test_a_failure_the_author_raises_is_taken_as_it_is() -> None:
    service = Service("ocr")
    service.map_error(Exception, FailureClass.TRANSIENT)
    raised = NonRetryable("BAD", "input")
    assert failure_of(raised, service.errors) is raised


def test_a_task_group_speaks_for_the_one_of_its_tasks_that_says_something() -> None:
    group = ExceptionGroup("two", [KeyError("x"), ExceptionGroup("one", [NonRetryable("BAD", "input")])])
    assert known(group) == ("NON_RETRYABLE", "BAD", None)
    assert known(ExceptionGroup("one", [KeyError("x")])) is None


@pytest.mark.parametrize("what", ["LibraryError", LibraryError(), int])
def test_only_classes_of_exceptions_are_mapped(what: Any) -> None:
    with pytest.raises(TypeError, match="class of an exception"):
        Service("ocr").map_error(what, FailureClass.TRANSIENT)


def test_a_class_that_is_none_is_refused_where_it_is_written() -> None:
    with pytest.raises(ValueError, match="NO_SUCH"):
        Service("ocr").map_error(LibraryError, "NO_SUCH")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NO_SUCH"):
        StepFailure("X", failure_class="NO_SUCH")  # type: ignore[arg-type]


# Retry-After


def test_retry_after_is_read_in_both_of_its_forms() -> None:
    in_a_minute = datetime.now(UTC) + timedelta(seconds=60)
    seconds = retry_after_seconds(format_datetime(in_a_minute, usegmt=True))
    assert seconds is not None
    assert 57 < seconds <= 60
    assert retry_after_seconds("12.5") == 12.5


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("-3", 0.0),
        ("inf", 86_400.0),
        ("99999999", 86_400.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 2015 07:28:00", 0.0),
    ],
)
def test_retry_after_is_bounded_and_nonsense_is_nothing(header: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(header) == seconds
    assert RateLimited("X", retry_after_seconds=float("inf")).retry_after_seconds == 86_400


# It can't fail


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    @property
    def response(self) -> object:
        raise RuntimeError("no response either")


class Forgetful(NonRetryable):
    def __init__(self) -> None:
        """Does not call ours."""


def test_an_exception_that_can_not_say_what_it_is_is_a_surprise_like_others() -> None:
    assert known(Speechless()) is None
    assert unexpected(Speechless()).message == "Speechless: "
    forgetful = failure_of(Forgetful(), {})
    assert forgetful is not None
    assert (forgetful.code, forgetful.message) == ("UNSPECIFIED", "")


def test_what_is_said_is_bounded_and_can_be_sent() -> None:
    failure = StepFailure("C" * 500, "half a character: \udcff" + "m" * 5000)
    assert (len(failure.code), len(failure.message)) == (128, 2000)
    assert failure.message.startswith("half a character: ?m")
    assert StepFailure("", "x").code == "UNSPECIFIED"
    assert StepFailure("X", KeyError("y")).message == "'y'"  # type: ignore[arg-type]


TOKEN = "eyJ0b2tlbiI6MX0.c2lnbmF0dXJl"


def test_the_token_is_cut_from_all_that_is_said() -> None:
    failure = redacted(StepFailure(f"X-{TOKEN}", f"GET /?token={TOKEN} and {TOKEN}"), TOKEN)
    assert (failure.code, failure.message) == ("X-[redacted]", "GET /?token=[redacted] and [redacted]")
    assert TOKEN not in traceback_of(RuntimeError(f"Bearer {TOKEN}"), TOKEN)


@pytest.mark.parametrize("length", [8, 20, len(TOKEN) - 1])
def test_a_token_cut_off_by_the_limit_is_cut_out_too(length: int) -> None:
    failure = redacted(StepFailure("X", "m" * (2000 - length) + TOKEN), TOKEN)
    assert failure.message.endswith("m[redacted]")


def test_without_a_token_nothing_is_cut() -> None:
    assert redacted(StepFailure("X", "message"), "").message == "message"
    assert "boom" in traceback_of(RuntimeError("boom"), "")
