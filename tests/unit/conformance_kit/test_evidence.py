"""What tells doing again from remembering, and what a ref may look like."""

from pathlib import Path

import pytest

from lucius.conformance.book import Attempt, Book, Said
from lucius.conformance.directives import Maker
from lucius.conformance.evidence import executed_again, is_uri, marks, path_of


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    maker = Maker(
        base_url="http://x", folder=tmp_path, service="ocr", step_type="OCR", input_ref="file:///x", ack_seconds=5.0
    )
    made = Book(lambda: None).add(maker.directive({}, lease_seconds=1.0), 5.0)
    made.handed_over = [0.0, 10.0, 12.0]
    return made


def results(*instants: float) -> list[Said]:
    return [Said(at=at, kind="result", token="", body={}, request=1) for at in instants]


@pytest.mark.parametrize(
    ("instants", "executed"),
    [((2.0, 10.1, 12.1), False), ((2.0, 11.5), True), ((2.0, 10.1, 13.8), True), ((2.0,), False)],
)
def test_a_result_is_timed_from_the_copy_that_it_answers(
    attempt: Attempt, instants: tuple[float, ...], executed: bool
) -> None:
    attempt.heard = results(*instants)
    assert bool(executed_again(attempt, 10.0, {}, 2.0)) is executed


def test_a_file_that_goes_while_we_look_is_not_there(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    monkeypatch.setattr(Path, "rglob", lambda _self, _pattern: [tmp_path / "gone"])
    assert marks(attempt) == {}


@pytest.mark.parametrize("ref", ["http://[oops", "output.txt", "", "file:///a%00b", "//host/path"])
def test_an_odd_ref_is_no_uri_and_leads_nowhere(ref: str) -> None:
    assert (is_uri(ref), path_of(ref)) == (False, None)


def test_a_file_ref_leads_to_its_file_and_a_blob_elsewhere() -> None:
    assert path_of("file:///a%20b") == Path("/a b")
    assert (is_uri("blob://c/x"), path_of("blob://c/x")) == (True, None)
