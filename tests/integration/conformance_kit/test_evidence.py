"""Evidence that distinguishes a repeat from a remembered result, and permitted forms of refs."""

from pathlib import Path

import pytest

from lucius.conformance.attempt_log import AttemptLog, PlayedAttempt, ReceivedCallback
from lucius.conformance.directives import DirectiveFactory
from lucius.conformance.evidence import executed_again, is_uri, marks, path_of


@pytest.fixture
def attempt(tmp_path: Path) -> PlayedAttempt:
    maker = DirectiveFactory(
        base_url="http://x", folder=tmp_path, service="ocr", step_type="OCR", input_ref="file:///x", ack_seconds=5.0
    )
    made = AttemptLog(lambda: None).add(maker.directive({}, lease_seconds=1.0), 5.0)
    made.handed_over = [0.0, 10.0, 12.0]
    return made


def results(*instants: float) -> list[ReceivedCallback]:
    return [ReceivedCallback(at=at, kind="result", token="", body={}, request=1) for at in instants]


@pytest.mark.parametrize(
    ("instants", "executed"),
    [((2.0, 10.1, 12.1), False), ((2.0, 11.5), True), ((2.0, 10.1, 13.8), True), ((2.0,), False)],
)
def test_repeated_result_is_timed_from_the_copy_that_it_answers(
    attempt: PlayedAttempt, instants: tuple[float, ...], executed: bool
) -> None:
    attempt.callbacks = results(*instants)
    assert bool(executed_again(attempt, 10.0, {}, 2.0)) is executed


def test_file_that_vanishes_during_the_scan_is_ignored(
    attempt: PlayedAttempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    monkeypatch.setattr(Path, "rglob", lambda _self, _pattern: [tmp_path / "gone"])
    assert marks(attempt) == {}


@pytest.mark.parametrize("ref", ["http://[oops", "output.txt", "", "file:///a%00b", "//host/path"])
def test_malformed_ref_is_no_uri_and_has_no_path(ref: str) -> None:
    assert (is_uri(ref), path_of(ref)) == (False, None)


def test_file_ref_has_a_path_and_a_blob_ref_has_none() -> None:
    assert path_of("file:///a%20b") == Path("/a b")
    assert (is_uri("blob://c/x"), path_of("blob://c/x")) == (True, None)
