"""`lucius demo`: real processes, real failures, and a verdict from the ledger, in well under a minute.

`stack` runs the processes, `commands` has what is submitted, `chaos` injects the failures, `story` is the sequence,
`view` the display and `verdict` the final check.
"""

from enum import StrEnum
from typing import Annotated

import typer

from lucius.cli.errors import run


class EngineOption(StrEnum):
    EMBEDDED = "embedded"
    TEMPORAL = "temporal"


def demo(
    jobs: Annotated[int, typer.Option(help="Documents to process", min=12, max=100)] = 24,
    seed: Annotated[int, typer.Option(help="Seed of documents, tenants and modes")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the verdict, as JSON")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the ledger, logs and outputs")] = False,
    engine: Annotated[EngineOption, typer.Option(help="Engine that drives the jobs")] = EngineOption.EMBEDDED,
) -> None:
    """Run jobs while services and the control plane are killed and callbacks are duplicated, late or dropped."""
    from lucius.cli.demo.story import run_demo  # noqa: PLC0415 - nothing else needs it

    run(lambda: run_demo(jobs, seed, as_json=as_json, keep=keep, engine=engine))
