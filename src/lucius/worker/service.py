"""`Service`, the class that a service author registers step functions with.

service = Service("ocr")

@service.step("OCR", params=OcrParams)
async def read_text(ctx: StepContext, params: OcrParams) -> StepResult: ...
"""

from lucius.worker.definition import ServiceDefinition


class Service(ServiceDefinition):
    """One platform service; the same object serves all attempts of a process.

    `version` is for operators: the log, `/healthz` and `lucius services` show it.
    """

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, configured by environment variables. The main function of a service process.

        Exits with 2 if a setting is wrong and with 1 if the service could not continue.
        """
        from lucius.worker.run import run_from_env  # noqa: PLC0415 - imports modules that only a service process needs

        run_from_env([self])
