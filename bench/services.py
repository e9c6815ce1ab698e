"""The three platform services in one process, each answering at once: what is measured is everything else."""

import argparse
import asyncio
import logging
import sys

import structlog

from lucius.services.run import run_services
from lucius.worker import Output, PlatformService, Task

DONE = Output(result={})


class Instant(PlatformService):
    def __init__(self, name: str) -> None:
        self.service = name  # one class stands in for three services

    async def execute(self, task: Task) -> Output:
        return DONE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--api-key", required=True)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--services", nargs="+", default=["ocr", "embedding", "sis"])
    arguments = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    services = [Instant(name) for name in arguments.services]
    asyncio.run(run_services(services, arguments.base_url, arguments.api_key, concurrency=arguments.concurrency))


if __name__ == "__main__":
    main()
