"""One document, without asyncio. Run `lucius dev` first, and set LUCIUS_URL and LUCIUS_API_KEY to what it prints."""

from lucius.client import Client, JobFailed, RequestRefused, TimedOut, Unreachable


def main() -> None:
    with Client.from_env(retry_for=10) as lucius:
        try:
            job = lucius.run(
                "OCR",
                tenant="acme",
                input="blob://in/contract.pdf",
                output="blob://out/contract.txt",
                timeout=60,
            )
        except JobFailed as failed:
            print(f"the job failed with {failed.code}; look at review item {failed.job.review_id}")
        except TimedOut as late:
            print(f"not yet: {late}")
        except RequestRefused as refused:
            print(f"refused with {refused.code}: {refused.detail}")
        except Unreachable as away:
            print(f"no answer: {away}")
        else:
            print(f"job {job.jobId} {job.status}: {job.output_ref}")


if __name__ == "__main__":
    main()
