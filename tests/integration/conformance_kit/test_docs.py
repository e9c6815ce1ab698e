"""docs/how-to/conformance.md describes what the kit does."""

import json
import re
from pathlib import Path

import msgspec

from lucius.conformance.cases import all_cases
from lucius.conformance.faults import FAULTS
from lucius.conformance.model import DOCS, CaseOutcome, Report
from lucius.conformance.plugin import SETTINGS

PAGE = (Path(__file__).parents[3] / DOCS).read_text(encoding="utf-8")


def test_page_has_a_section_for_each_case_in_the_order_of_the_list() -> None:
    section = PAGE.partition("## The cases")[2].partition("## The report")[0]
    assert re.findall(r"^### (.+)$", section, re.MULTILINE) == [case.id for case in all_cases()]


def test_page_explains_each_outcome() -> None:
    assert all(f"| `{outcome.label}` |" in PAGE for outcome in CaseOutcome)


def test_report_on_the_page_is_valid() -> None:
    shown = re.search(r"## The report\n\n```json\n(.+?)```", PAGE, re.DOTALL)
    assert shown
    report = msgspec.json.decode(shown[1], type=Report)
    assert json.loads(shown[1]) == msgspec.to_builtins(report)


def test_page_names_the_options_of_the_plugin() -> None:
    section = PAGE.partition("## In your tests")[2].partition("## How to read")[0]
    assert all(f"`{setting.name.replace('_', '-')}`" in section for setting in SETTINGS)


def test_faults_named_on_the_page_exist() -> None:
    assert set(re.findall(r"--fault ([a-z-]+)", PAGE)) <= set(FAULTS)
