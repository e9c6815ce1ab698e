"""The SIS service: answers each prompt of a prompt set about the document, in `result.json`.

Answers are sentences of the document or, if an endpoint is configured, written by a chat model from the chunks that
retrieval found.
"""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec

from lucius.reference_services.answers import AnswerFinder, PromptAnswer, Prompts, make_source
from lucius.reference_services.chat import ChatClient
from lucius.reference_services.documents import Documents, DocumentText, extract_text, find_artifact
from lucius.reference_services.models import Models
from lucius.reference_services.retrieval import ChunkIndex
from lucius.reference_services.settings import ChatSettings, ServiceSettings
from lucius.reference_services.vectors import Chunking, Vectors, embed_document, read_vectors
from lucius.version import __version__
from lucius.worker import NonRetryable, Service, StepContext, StepResult

MAX_PROMPTS = 1000
MAX_CONCURRENT_PROMPTS = 4
"""Requests to a chat endpoint at a time. All of a batch are awaited, so that no paid answer is lost."""
NO_ANSWER_TEXT = "(no answer found in the document)"
CUT_OFF_SUFFIX = "… (cut off)"


def sis_service(settings: ServiceSettings) -> Service:
    service = Service("sis", version=__version__)
    work = SisStep(settings)
    service.startup(work.models.load)
    chat = settings.chat

    if chat is None:

        @service.step("SIS", params=Prompts)
        def answer_with_sentences(ctx: StepContext, prompts: Prompts) -> StepResult:
            check_prompts(prompts)
            vectors, index = work.index(ctx)
            reader = AnswerFinder(vectors, index, ctx.raise_if_stopping)
            answers: list[PromptAnswer] = []
            for number, prompt in enumerate(prompts.prompt_set):
                ctx.raise_if_stopping()
                ctx.progress(number, len(prompts.prompt_set), "prompt")
                answers.append(reader.answer(prompt, prompts))
            ctx.progress(len(answers), len(answers), "prompt")
            how = {"method": "extractive", "ranked_by": index.model.name}
            return work.write_result(ctx, prompts, vectors, answers, how)

    else:

        @service.step("SIS", params=Prompts)
        async def answer_with_a_model(ctx: StepContext, prompts: Prompts) -> StepResult:
            check_prompts(prompts)
            vectors, index = await asyncio.to_thread(work.index, ctx)
            answers = await answer_by_chat(ctx, chat, prompts, index)
            how = {"method": "chat", "chat_model": chat.model, "ranked_by": index.model.name}
            return await asyncio.to_thread(work.write_result, ctx, prompts, vectors, answers, how)

    return service


class SisStep:
    """Parts common to both ways of answering: building the index and writing the result."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._documents = Documents()
        self.models = Models(settings.embedding_model, settings.threads)

    def index(self, ctx: StepContext) -> tuple[Vectors, ChunkIndex]:
        vectors = self._vectors(ctx)
        ctx.raise_if_stopping()
        return vectors, ChunkIndex(vectors, self.models)

    def write_result(
        self, ctx: StepContext, prompts: Prompts, vectors: Vectors, answers: list[PromptAnswer], how: dict[str, str]
    ) -> StepResult:
        directive = ctx.directive
        about = {"jobId": directive.jobId, "doc_id": directive.doc_id, "input_ref": directive.input_ref}
        missing = {"unread_pages": vectors.unread_pages} if vectors.unread_pages else {}
        data = msgspec.json.encode({**about, "model": vectors.model, **how, **missing, "answers": answers})
        ref = ctx.files.write("result.json", data)
        if prompts.output_format == "text":
            handed_over = self._documents.write_output(ctx, "result.txt", _render_text(answers))
        else:
            handed_over = self._documents.write_output(ctx, "result.json", data)
        answered = sum(1 for found in answers if found.answer)
        result: dict[str, object] = {"prompts": len(answers), "answered": answered, "sha256": ref.sha256, **missing}
        truncated = sum(found.truncated for found in answers)
        if truncated:
            result["truncated"] = truncated
        return StepResult({**result, **handed_over}, [ref])

    def _vectors(self, ctx: StepContext) -> Vectors:
        """Read the vectors of EMBEDDING or of a client's own vectors.json; else embed the text here."""
        ref = find_artifact(ctx, "embedding", "vectors.json")
        if ref is not None:
            return read_vectors(ctx.files.read(ref))
        if find_artifact(ctx, "ocr", ".txt") is not None:
            return self._embedded(ctx, self._documents.read_text(ctx))
        data = self._documents.read_input(ctx)
        if data.lstrip()[:1] == b"{" and b'"chunks"' in data:
            return read_vectors(data)
        return self._embedded(ctx, extract_text(data, ctx.raise_if_stopping))

    def _embedded(self, ctx: StepContext, document: DocumentText) -> Vectors:
        model = self.models.choose(None, None)
        stop = ctx.raise_if_stopping
        return embed_document(document, Chunking(), model, stop, lambda done, total: stop())


async def answer_by_chat(
    ctx: StepContext, settings: ChatSettings, prompts: Prompts, index: ChunkIndex
) -> list[PromptAnswer]:
    """Answer the prompts with a chat model, each distinct prompt once."""
    distinct = list(dict.fromkeys(prompts.prompt_set))
    answers: dict[str, PromptAnswer] = {}
    async with aiohttp.ClientSession() as session:
        chat = ChatClient(settings, session, ctx)

        async def ask(prompt: str) -> PromptAnswer:
            query = await asyncio.to_thread(index.query, prompt)
            found = index.nearest(query, prompts.top_k)
            reply = await chat.answer(prompt, [chunk for _, chunk in found], prompts.max_tokens)
            sources = [make_source(chunk, score, chunk.page) for score, chunk in found[: reply.excerpts]]
            score = sources[0].score if sources else 0.0
            return PromptAnswer(prompt, reply.answer, score, sources if reply.answer else [], reply.truncated)

        for start in range(0, len(distinct), MAX_CONCURRENT_PROMPTS):
            ctx.raise_if_stopping()
            ctx.progress(start, len(distinct), "prompt")
            for answer in await _gather_all(ask, distinct[start : start + MAX_CONCURRENT_PROMPTS]):
                answers[answer.prompt] = answer
    ctx.progress(len(distinct), len(distinct), "prompt")
    return [answers[prompt] for prompt in prompts.prompt_set]


async def _gather_all(ask: Callable[[str], Awaitable[PromptAnswer]], prompts: list[str]) -> list[PromptAnswer]:
    """Return all answers or raise the first failure, after every request has ended."""
    outcomes = await asyncio.gather(*(ask(prompt) for prompt in prompts), return_exceptions=True)
    answers: list[PromptAnswer] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        answers.append(outcome)
    return answers


def check_prompts(prompts: Prompts) -> None:
    """Raise NonRetryable for invalid parameters; do not rely on the orchestrator's schema check."""
    smallest = min(prompts.top_k, prompts.max_sentences, prompts.max_tokens)
    if not 1 <= len(prompts.prompt_set) <= MAX_PROMPTS or smallest < 1:
        message = f"1 to {MAX_PROMPTS} prompts; top_k, max_sentences, max_tokens at least 1"
        raise NonRetryable("INVALID_PAYLOAD", message)
    if prompts.min_score is not None and not 0 <= prompts.min_score <= 1:
        raise NonRetryable("INVALID_PAYLOAD", "min_score must be 0 to 1")


def _render_text(answers: list[PromptAnswer]) -> bytes:
    return "\n\n".join(f"{found.prompt}\n{_render_answer(found)}" for found in answers).encode()


def _render_answer(found: PromptAnswer) -> str:
    if not found.answer:
        return NO_ANSWER_TEXT
    return f"{found.answer} {CUT_OFF_SUFFIX}" if found.truncated else found.answer
