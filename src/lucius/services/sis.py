"""SIS: answers each prompt of a prompt set with the document's own sentences, as `result.json`."""

import asyncio
from typing import Literal

import msgspec

from lucius.contract import Directive
from lucius.services.documents import DocumentService, artifact, decode, sha256
from lucius.services.embedding import vectors_of
from lucius.services.vectors import Chunk, Chunking, Vectors, cosine, embed, sentences
from lucius.worker import Output, Task
from lucius.worker.failure import never

MAX_PROMPTS = 1000


class Prompts(msgspec.Struct, frozen=True):
    prompt_set: list[str]
    top_k: int = 3
    max_sentences: int = 2
    max_tokens: int = 1024
    output_format: Literal["json", "text"] = "json"


class Source(msgspec.Struct, frozen=True):
    chunk: int
    start: int
    end: int
    score: float


class Answer(msgspec.Struct, frozen=True):
    prompt: str
    answer: str
    score: float
    sources: list[Source]


class Sis(DocumentService):
    service = "sis"

    async def execute(self, task: Task) -> Output:
        prompts = task.payload_as(Prompts)
        if not 1 <= len(prompts.prompt_set) <= MAX_PROMPTS or min(_bounds(prompts)) < 1:
            raise never("INVALID_PAYLOAD", f"1 to {MAX_PROMPTS} prompts; top_k, max_sentences, max_tokens at least 1")
        vectors = await self._vectors(task)
        answers: list[Answer] = []
        for number, prompt in enumerate(prompts.prompt_set, start=1):
            task.raise_if_cancelled()
            answers.append(await asyncio.to_thread(answer, prompt, vectors, prompts))
            task.progress(number / len(prompts.prompt_set))
        data = msgspec.json.encode(_document(task.directive, vectors, answers))
        ref = await task.workspace.write("result.json", data)
        if prompts.output_format == "text":
            handed_over = await self.hand_over(task, "result.txt", _plain(answers))
        else:
            handed_over = await self.hand_over(task, "result.json", data)
        answered = sum(1 for found in answers if found.answer)
        return Output({"prompts": len(answers), "answered": answered, "sha256": sha256(data), **handed_over}, [ref])

    async def _vectors(self, task: Task) -> Vectors:
        """What EMBEDDING left; else made here from text, or read from a client's own vectors.json."""
        ref = artifact(task, "embedding", "vectors.json")
        if ref is not None:
            return _read_vectors(await task.workspace.read(ref))
        if artifact(task, "ocr", ".txt") is None:
            data = await self.read_input(task)
            if data.lstrip()[:1] == b"{" and b'"chunks"' in data:
                return _read_vectors(data)
            text = decode(data)
        else:
            text = await self.read_text(task)
        return await vectors_of(text, Chunking())


def answer(prompt: str, vectors: Vectors, prompts: Prompts) -> Answer:
    """The best sentences of the best chunks, in the order of the document."""
    wanted = embed(prompt, vectors.dimensions)
    ranked = sorted(((cosine(wanted, chunk.vector), chunk) for chunk in vectors.chunks), key=_best_first)
    best = [(score, chunk) for score, chunk in ranked[: prompts.top_k] if score > 0]
    candidates: dict[str, float] = {}
    for _, chunk in sorted(best, key=lambda scored: scored[1].index):
        for sentence in sentences(chunk.text):
            candidates.setdefault(sentence, cosine(wanted, embed(sentence, vectors.dimensions)))
    top = set(sorted(candidates, key=lambda sentence: -candidates[sentence])[: prompts.max_sentences])
    said = " ".join(sentence for sentence in candidates if sentence in top and candidates[sentence] > 0)
    return Answer(
        prompt=prompt,
        answer=" ".join(said.split()[: prompts.max_tokens]),
        score=round(best[0][0], 6) if best else 0.0,
        sources=[Source(chunk.index, chunk.start, chunk.end, round(score, 6)) for score, chunk in best],
    )


def _bounds(prompts: Prompts) -> tuple[int, int, int]:
    return prompts.top_k, prompts.max_sentences, prompts.max_tokens


def _plain(answers: list[Answer]) -> bytes:
    return "\n\n".join(f"{found.prompt}\n{found.answer}" for found in answers).encode()


def _best_first(scored: tuple[float, Chunk]) -> tuple[float, int]:
    return -scored[0], scored[1].index


def _read_vectors(data: bytes) -> Vectors:
    try:
        vectors = msgspec.json.decode(data, type=Vectors)
    except msgspec.DecodeError as error:
        raise never("UNSUPPORTED_INPUT", f"not a vectors.json: {error}") from error
    if any(len(chunk.vector) != vectors.dimensions for chunk in vectors.chunks):
        raise never("UNSUPPORTED_INPUT", "a vectors.json whose vectors differ in length from its dimensions")
    return vectors


def _document(directive: Directive, vectors: Vectors, answers: list[Answer]) -> dict[str, object]:
    return {
        "jobId": directive.jobId,
        "doc_id": directive.doc_id,
        "input_ref": directive.input_ref,
        "model": vectors.model,
        "answers": answers,
    }
