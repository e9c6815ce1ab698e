"""The smallest complete platform service: reads the document, writes it in capitals.

LUCIUS_ORCHESTRATOR_URL=http://127.0.0.1:8080 LUCIUS_API_KEY=… python examples/service_upper.py
"""

from lucius.worker import NonRetryable, Service, StepContext, StepResult

service = Service("upper")


@service.step("UPPER")
async def upper(ctx: StepContext) -> StepResult:
    document = await ctx.workspace.read(ctx.directive.input_ref)
    try:
        text = document.decode().upper()
    except UnicodeDecodeError as error:
        raise NonRetryable("NOT_UTF8", str(error)) from error
    artifact = await ctx.workspace.write("upper.txt", text.encode())
    if ctx.last_step:
        await ctx.workspace.write_output(text.encode(), "upper.txt")
    return StepResult({"chars": len(text)}, [artifact])


if __name__ == "__main__":
    service.run()
