"""The three platform services in one process, each answering at once: what is measured is everything else."""

import argparse
import asyncio
import logging
import sys
from pathlib import Path

import structlog

from lucius.worker import Service, StepContext, StepResult
from lucius.worker.host import host
from lucius.worker.settings import WorkerSettings

DONE = StepResult(result={})


def instant(name: str) -> Service:
    service = Service(name)

    @service.step()
    async def execute(ctx: StepContext) -> StepResult:
        return DONE

    return service


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--api-key", required=True)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--services", nargs="+", default=["ocr", "embedding", "sis"])
    arguments = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    settings = WorkerSettings(
        orchestrator_url=arguments.base_url,
        api_key=arguments.api_key,
        concurrency=arguments.concurrency,
        data_dir=arguments.data_dir,
    )
    asyncio.run(host([instant(name) for name in arguments.services], settings))


if __name__ == "__main__":
    main()
