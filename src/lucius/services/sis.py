"""SIS: answers each prompt of a prompt set with the document's own sentences, as `result.json`."""

from typing import Literal

import msgspec

from lucius import __version__
from lucius.contract import Directive
from lucius.services.documents import Documents, ServiceSettings, artifact, decode
from lucius.services.embedding import vectors_of
from lucius.services.vectors import Chunk, Chunking, Vectors, cosine, embed, sentences
from lucius.worker import NonRetryable, Service, StepContext, StepResult

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


def sis(settings: ServiceSettings) -> Service:
    service = Service("sis", version=__version__)
    documents = Documents(settings)

    @service.step("SIS", params=Prompts)
    def answer_all(ctx: StepContext, prompts: Prompts) -> StepResult:
        if not 1 <= len(prompts.prompt_set) <= MAX_PROMPTS or min(_bounds(prompts)) < 1:
            raise NonRetryable(
                "INVALID_PAYLOAD", f"1 to {MAX_PROMPTS} prompts; top_k, max_sentences, max_tokens at least 1"
            )
        vectors = _vectors(ctx, documents)
        answers: list[Answer] = []
        for number, prompt in enumerate(prompts.prompt_set, start=1):
            ctx.raise_if_stopping()
            answers.append(answer(prompt, vectors, prompts))
            ctx.progress(number / len(prompts.prompt_set))
        data = msgspec.json.encode(_document(ctx.directive, vectors, answers))
        ref = ctx.files.write("result.json", data)
        if prompts.output_format == "text":
            handed_over = documents.hand_over(ctx, "result.txt", _plain(answers))
        else:
            handed_over = documents.hand_over(ctx, "result.json", data)
        answered = sum(1 for found in answers if found.answer)
        return StepResult({"prompts": len(answers), "answered": answered, "sha256": ref.sha256, **handed_over}, [ref])

    return service


def _vectors(ctx: StepContext, documents: Documents) -> Vectors:
    """What EMBEDDING left; else made here from text, or read from a client's own vectors.json."""
    ref = artifact(ctx, "embedding", "vectors.json")
    if ref is not None:
        return _read_vectors(ctx.files.read(ref))
    if artifact(ctx, "ocr", ".txt") is None:
        data = documents.read_input(ctx)
        if data.lstrip()[:1] == b"{" and b'"chunks"' in data:
            return _read_vectors(data)
        text = decode(data)
    else:
        text = documents.read_text(ctx)
    return vectors_of(text, Chunking())


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
        raise NonRetryable("UNSUPPORTED_INPUT", f"not a vectors.json: {error}") from error
    if any(len(chunk.vector) != vectors.dimensions for chunk in vectors.chunks):
        raise NonRetryable("UNSUPPORTED_INPUT", "a vectors.json whose vectors differ in length from its dimensions")
    return vectors


def _document(directive: Directive, vectors: Vectors, answers: list[Answer]) -> dict[str, object]:
    return {
        "jobId": directive.jobId,
        "doc_id": directive.doc_id,
        "input_ref": directive.input_ref,
        "model": vectors.model,
        "answers": answers,
    }
