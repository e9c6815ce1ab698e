"""Submit a few documents, follow one of them, and wait for all. Run `lucius dev` first, and set LUCIUS_URL and
LUCIUS_API_KEY to what it prints."""

import asyncio

from lucius.client import Accepted, AsyncClient, Command, LuciusError


async def main() -> None:
    async with AsyncClient.from_env() as lucius:
        # One document, from submit to its end. The same content is the same job, however often you run this.
        job = await lucius.submit(
            "OCR_EMBEDDING_SIS",
            tenant="acme",
            input="blob://in/contract.pdf",
            output="blob://out/contract.json",
            payload={"sis": {"prompt_set": ["What must the supplier deliver?"]}},
        )
        async for event in lucius.stream(job.jobId):
            print(f"{event.seq:>3} {event.type:<20} {event.stepId or ''}")

        # Many at once: each command has its own outcome.
        commands = [
            Command("OCR", tenant="acme", input="blob://in/contract.pdf", output=f"blob://out/{n}") for n in range(3)
        ]
        outcomes = await lucius.submit_many(commands)
        accepted = [outcome.jobId for outcome in outcomes if isinstance(outcome, Accepted)]
        done = await asyncio.gather(*(lucius.wait(job_id, timeout=60) for job_id in accepted))
        print(f"{sum(job.status == 'SUCCEEDED' for job in done)} of {len(commands)} succeeded")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except LuciusError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None
