"""OCR: the text of the client's document, as `output.txt`."""

import asyncio

from lucius.services.documents import DocumentService, sha256
from lucius.services.text import NotText, text_of
from lucius.worker import Output, Task
from lucius.worker.failure import never


class Ocr(DocumentService):
    service = "ocr"

    async def execute(self, task: Task) -> Output:
        document = await self.read_input(task)
        task.progress(0.2)
        try:
            pages = await asyncio.to_thread(text_of, document)
        except NotText as error:
            raise never("UNSUPPORTED_INPUT", str(error)) from error
        task.raise_if_cancelled()
        text = "\f".join(pages)
        data = text.encode()
        task.progress(0.8)
        ref = await task.workspace.write("output.txt", data)
        handed_over = await self.hand_over(task, "output.txt", data)
        return Output({"pages": len(pages), "chars": len(text), "sha256": sha256(data), **handed_over}, [ref])
