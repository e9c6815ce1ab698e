"""Platform service of the tutorial: adds up the amounts of an invoice, and reports them."""

import hashlib
import re

import msgspec

from lucius.worker import NonRetryable, Service, StepContext, StepResult

AMOUNT = re.compile(r"(\d+\.\d\d) (EUR|USD)$", re.MULTILINE)

service = Service("totals")


class TotalsParams(msgspec.Struct):
    currency: str = "EUR"


@service.step("TOTALS", params=TotalsParams)
async def add_up(ctx: StepContext, params: TotalsParams) -> StepResult:
    text = (await ctx.workspace.read(ctx.inputs["ocr"].artifact_refs[0])).decode()
    amounts = [float(amount) for amount, currency in AMOUNT.findall(text) if currency == params.currency]
    if not amounts:
        raise NonRetryable("NO_AMOUNTS", f"the document has no line that ends with an amount in {params.currency}")
    ctx.progress(len(amounts), len(amounts), "line")
    return StepResult({"total": sum(amounts), "currency": params.currency, "lines": len(amounts)})


@service.step("REPORT")
async def report(ctx: StepContext) -> StepResult:
    totals = ctx.inputs["totals"].result
    approvals = ctx.inputs["sign"].result["approvals"] if "sign" in ctx.inputs else []
    text = msgspec.json.encode({"totals": totals, "approved_by": [vote["by"] for vote in approvals]})
    await ctx.workspace.write_output(text, "report.json")
    return StepResult({"sha256": hashlib.sha256(text).hexdigest()})


if __name__ == "__main__":
    service.run()
