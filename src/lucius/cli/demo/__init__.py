"""`lucius demo`: real processes, real failures, and a verdict from the ledger, in well under a minute.

`stack` runs the processes, `commands` says what is submitted, `chaos` breaks things, `story` puts them in order,
`view` shows it and `verdict` judges it.
"""

from enum import StrEnum
from typing import Annotated

import typer

from lucius.cli.errors import run


class Engine(StrEnum):
    EMBEDDED = "embedded"
    TEMPORAL = "temporal"


def demo(
    jobs: Annotated[int, typer.Option(help="Documents to process", min=12, max=100)] = 24,
    seed: Annotated[int, typer.Option(help="Which documents, tenants and modes")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Only the verdict, for machines")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the ledger, logs and outputs where they are")] = False,
    engine: Annotated[Engine, typer.Option(help="What drives the jobs")] = Engine.EMBEDDED,
) -> None:
    """Watch jobs survive: services and the control plane are killed, callbacks doubled, late and dropped."""
    from lucius.cli.demo.story import tell_story  # noqa: PLC0415 - nothing else needs it

    run(lambda: tell_story(jobs, seed, as_json=as_json, keep=keep, engine=engine))
