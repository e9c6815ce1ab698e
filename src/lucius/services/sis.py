"""SIS: answers each prompt of a prompt set about the document, as `result.json`.

With the document's own sentences; or, where an endpoint is configured, in the words of a chat model that is given the
parts of the document which retrieval found.
"""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec

from lucius import __version__
from lucius.services.answers import Answer, Prompts, Reader, source_of
from lucius.services.chat import Chat
from lucius.services.documents import Documents, Text, artifact, text_in
from lucius.services.models import Models
from lucius.services.retrieval import Index
from lucius.services.settings import ChatSettings, ServiceSettings
from lucius.services.vectors import Chunking, Vectors, embed_document, read_vectors
from lucius.worker import NonRetryable, Service, StepContext, StepResult

MAX_PROMPTS = 1000
AT_ONCE = 4
"""Questions to a chat endpoint. Those of a batch are all waited for, so that no answer that was paid for is lost."""
SILENCE = "(no answer found in the document)"
CUT_OFF = "… (cut off)"


def sis_service(settings: ServiceSettings) -> Service:
    service = Service("sis", version=__version__)
    work = Answering(settings)
    service.startup(work.models.load)
    chat = settings.chat

    if chat is None:

        @service.step("SIS", params=Prompts)
        def answer_with_sentences(ctx: StepContext, prompts: Prompts) -> StepResult:
            check(prompts)
            vectors, index = work.index(ctx)
            reader = Reader(vectors, index, ctx.raise_if_stopping)
            answers: list[Answer] = []
            for number, prompt in enumerate(prompts.prompt_set):
                ctx.raise_if_stopping()
                ctx.progress(number / len(prompts.prompt_set))
                answers.append(reader.answer(prompt, prompts))
            return work.leave(ctx, prompts, vectors, answers, {"method": "extractive", "ranked_by": index.model.name})

    else:

        @service.step("SIS", params=Prompts)
        async def answer_with_a_model(ctx: StepContext, prompts: Prompts) -> StepResult:
            check(prompts)
            vectors, index = await asyncio.to_thread(work.index, ctx)
            answers = await by_chat(ctx, chat, prompts, index)
            how = {"method": "chat", "chat_model": chat.model, "ranked_by": index.model.name}
            return await asyncio.to_thread(work.leave, ctx, prompts, vectors, answers, how)

    return service


class Answering:
    """What both ways of answering share: the document's vectors before, its result after."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._documents = Documents(settings)
        self.models = Models(settings.embedding_model, settings.threads)

    def index(self, ctx: StepContext) -> tuple[Vectors, Index]:
        vectors = self._vectors(ctx)
        ctx.raise_if_stopping()
        return vectors, Index(vectors, self.models)

    def leave(
        self, ctx: StepContext, prompts: Prompts, vectors: Vectors, answers: list[Answer], how: dict[str, str]
    ) -> StepResult:
        directive = ctx.directive
        about = {"jobId": directive.jobId, "doc_id": directive.doc_id, "input_ref": directive.input_ref}
        missing = {"unread_pages": vectors.unread_pages} if vectors.unread_pages else {}
        data = msgspec.json.encode({**about, "model": vectors.model, **how, **missing, "answers": answers})
        ref = ctx.files.write("result.json", data)
        if prompts.output_format == "text":
            handed_over = self._documents.hand_over(ctx, "result.txt", _plain(answers))
        else:
            handed_over = self._documents.hand_over(ctx, "result.json", data)
        answered = sum(1 for found in answers if found.answer)
        result: dict[str, object] = {"prompts": len(answers), "answered": answered, "sha256": ref.sha256, **missing}
        truncated = sum(found.truncated for found in answers)
        if truncated:
            result["truncated"] = truncated
        return StepResult({**result, **handed_over}, [ref])

    def _vectors(self, ctx: StepContext) -> Vectors:
        """What EMBEDDING left; else made here from text, or read from a client's own vectors.json."""
        ref = artifact(ctx, "embedding", "vectors.json")
        if ref is not None:
            return read_vectors(ctx.files.read(ref))
        if artifact(ctx, "ocr", ".txt") is not None:
            return self._embedded(ctx, self._documents.read_text(ctx))
        data = self._documents.read_input(ctx)
        if data.lstrip()[:1] == b"{" and b'"chunks"' in data:
            return read_vectors(data)
        return self._embedded(ctx, text_in(data, ctx.raise_if_stopping))

    def _embedded(self, ctx: StepContext, document: Text) -> Vectors:
        model = self.models.chosen(None, None)
        return embed_document(document, Chunking(), model, lambda done: ctx.raise_if_stopping())


async def by_chat(ctx: StepContext, settings: ChatSettings, prompts: Prompts, index: Index) -> list[Answer]:
    """Each prompt is asked once, however often it is in the set."""
    distinct = list(dict.fromkeys(prompts.prompt_set))
    answers: dict[str, Answer] = {}
    async with aiohttp.ClientSession() as session:
        chat = Chat(settings, session, ctx)

        async def ask(prompt: str) -> Answer:
            query = await asyncio.to_thread(index.query, prompt)
            found = index.nearest(query, prompts.top_k)
            said = await chat.answer(prompt, [chunk for _, chunk in found], prompts.max_tokens)
            sources = [source_of(chunk, score, chunk.page) for score, chunk in found[: said.excerpts]]
            score = sources[0].score if sources else 0.0
            return Answer(prompt, said.answer, score, sources if said.answer else [], said.truncated)

        for start in range(0, len(distinct), AT_ONCE):
            ctx.raise_if_stopping()
            ctx.progress(start / len(distinct))
            for answer in await _all(ask, distinct[start : start + AT_ONCE]):
                answers[answer.prompt] = answer
    return [answers[prompt] for prompt in prompts.prompt_set]


async def _all(ask: Callable[[str], Awaitable[Answer]], prompts: list[str]) -> list[Answer]:
    """The answers to all, or the first failure, once every one has ended."""
    outcomes = await asyncio.gather(*(ask(prompt) for prompt in prompts), return_exceptions=True)
    answers: list[Answer] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        answers.append(outcome)
    return answers


def check(prompts: Prompts) -> None:
    """The orchestrator checks payloads against a schema too; a service does not rely on it."""
    least = min(prompts.top_k, prompts.max_sentences, prompts.max_tokens)
    if not 1 <= len(prompts.prompt_set) <= MAX_PROMPTS or least < 1:
        told = f"1 to {MAX_PROMPTS} prompts; top_k, max_sentences, max_tokens at least 1"
        raise NonRetryable("INVALID_PAYLOAD", told)
    if prompts.min_score is not None and not 0 <= prompts.min_score <= 1:
        raise NonRetryable("INVALID_PAYLOAD", "min_score must be 0 to 1")


def _plain(answers: list[Answer]) -> bytes:
    return "\n\n".join(f"{found.prompt}\n{_told(found)}" for found in answers).encode()


def _told(found: Answer) -> str:
    if not found.answer:
        return SILENCE
    return f"{found.answer} {CUT_OFF}" if found.truncated else found.answer
