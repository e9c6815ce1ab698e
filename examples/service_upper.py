"""The smallest complete platform service: reads the document, writes it in capitals.

LUCIUS_ORCHESTRATOR_URL=http://127.0.0.1:8080 LUCIUS_API_KEY=… python examples/service_upper.py
"""

from lucius.services.run import run_from_env
from lucius.worker import FailureClass, Output, PlatformService, StepFailure, Task


class Upper(PlatformService):
    service = "upper"

    async def execute(self, task: Task) -> Output:
        document = await task.workspace.read(task.directive.input_ref)
        try:
            text = document.decode().upper()
        except UnicodeDecodeError as error:
            raise StepFailure("NOT_UTF8", str(error), failure_class=FailureClass.NON_RETRYABLE) from error
        ref = await task.workspace.write("upper.txt", text.encode())
        if task.directive.last_step:
            await task.workspace.write_output(task.directive.output_ref, text.encode(), "upper.txt")
        return Output(result={"chars": len(text)}, artifact_refs=[ref])


if __name__ == "__main__":
    run_from_env(Upper())
