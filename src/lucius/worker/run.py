"""Main function of a service process."""

import asyncio
import multiprocessing
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lucius.ports.errors import ExpectedError
from lucius.worker.definition import BadService, ServiceDefinition
from lucius.worker.host import host
from lucius.worker.logs import configure_logging
from lucius.worker.settings import BadSetting, WorkerSettings, settings_from

EXIT_TIMEOUT_SECONDS = 3.0
SPARE_THREADS = 16


def run_from_env(services: Sequence[ServiceDefinition]) -> None:
    """Serve until a stop signal. Exits with 2 and one line if a setting is wrong, with 1 if it could not continue."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError("call run() under `if __name__ == '__main__':`, since a process of a step imports this, too")
    configure_logging()
    code = 0
    try:
        settings = settings_from()
        if not settings.api_key and settings.bus_url == "local:":
            raise BadSetting("LUCIUS_API_KEY is not set: a key of scope serve for this service")
        serve(services, settings)
    except (BadSetting, BadService) as error:
        sys.stderr.write(f"{error}\n")
        code = 2
    except ExpectedError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        code = 1
    except KeyboardInterrupt:  # signal handlers not installed yet
        code = 130
    if code:
        raise SystemExit(code)


def serve(services: Sequence[ServiceDefinition], settings: WorkerSettings) -> None:
    """Serve until a stop signal. Raises the error that made it end.

    A task or thread of a step that never ends holds up the exit for at most 3 s.
    """
    ended = threading.Event()
    code, why = 1, ""

    def exit_anyway() -> None:
        if not ended.wait(EXIT_TIMEOUT_SECONDS):
            sys.stderr.write(f"{why}something that a step or a hook began does not end; exiting without it\n")
            sys.stderr.flush()
            os._exit(code)

    try:
        with asyncio.Runner() as runner:
            try:
                runner.run(_host(services, settings))
                code = 0
            except Exception as error:
                code = 2 if isinstance(error, (BadSetting, BadService)) else 1
                why = f"{type(error).__name__}: {error}\n"
                raise
            finally:
                threading.Thread(target=exit_anyway, name="exit", daemon=True).start()
    finally:
        ended.set()


async def _host(services: Sequence[ServiceDefinition], settings: WorkerSettings) -> None:
    # Steps that call `asyncio.to_thread` should not wait for each other: the default pool ignores `concurrency`.
    threads = ThreadPoolExecutor(settings.concurrency + SPARE_THREADS, thread_name_prefix="to_thread")
    asyncio.get_running_loop().set_default_executor(threads)
    await host(services, settings)
