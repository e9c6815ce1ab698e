"""OCR: the text of the client's document, as `output.txt`."""

import asyncio

import msgspec

from lucius.services.documents import DocumentService, sha256
from lucius.services.text import NotText, text_of
from lucius.worker import Output, Task
from lucius.worker.failure import never


class Wanted(msgspec.Struct, frozen=True):
    """The part of the payload this service heeds. It does not look at pixels, so language and dpi say nothing to it."""

    pages: list[int] | None = None


class Ocr(DocumentService):
    service = "ocr"

    async def execute(self, task: Task) -> Output:
        wanted = task.payload_as(Wanted).pages
        document = await self.read_input(task)
        task.progress(0.2)
        try:
            pages = await asyncio.to_thread(text_of, document)
        except NotText as error:
            raise never("UNSUPPORTED_INPUT", str(error)) from error
        task.raise_if_cancelled()
        if wanted is not None:
            pages = [page for number, page in enumerate(pages, start=1) if number in wanted]
        text = "\f".join(pages)
        data = text.encode()
        task.progress(0.8)
        ref = await task.workspace.write("output.txt", data)
        handed_over = await self.hand_over(task, "output.txt", data)
        return Output({"pages": len(pages), "chars": len(text), "sha256": sha256(data), **handed_over}, [ref])
