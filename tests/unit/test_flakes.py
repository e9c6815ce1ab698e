"""Reading of test reports by `make flakes`."""

from pathlib import Path

from scripts.flakes import failures

REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_passes"/>
<testcase classname="tests.unit.test_b" name="test_fails"><failure message="no"/></testcase>
<testcase classname="tests.unit.test_a" name="test_breaks"><error message="no"/></testcase>
<testcase classname="tests.unit.test_a" name="test_skipped"><skipped/></testcase>
</testsuite></testsuites>"""


def test_failures_and_errors_are_listed(tmp_path: Path) -> None:
    report = tmp_path / "run-1.xml"
    report.write_text(REPORT)
    assert failures(report) == ["tests.unit.test_a::test_breaks", "tests.unit.test_b::test_fails"]
