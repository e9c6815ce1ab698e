"""An OpenAI-compatible endpoint with configured answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from lucius.reference_services.settings import ChatSettings

KEY = "sk-test-0123456789abcdefghij"


class ChatPeer:
    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: dict[str, web.Response] = {}
        """Answers to give instead, by a word of the question."""
        self.slow = ""
        """A word of the questions that are answered with a delay."""
        self.base_url = ""

    @property
    def questions(self) -> list[str]:
        return [body["messages"][-1]["content"].rpartition("Question: ")[2] for body in self.asked]

    def settings(self, **changes: Any) -> ChatSettings:
        return ChatSettings(**{"base_url": self.base_url, "model": "test-model", "api_key": KEY, **changes})

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        self.headers.append(dict(request.headers))
        question = self.questions[-1]
        if self.slow and self.slow in question:
            await asyncio.sleep(0.2)
        for word, answer in self.answers.items():
            if word in question:
                return web.Response(status=answer.status, body=answer.body, headers=answer.headers)
        return said(f"You asked: {question}")


def said(text: str | None, why_it_ended: str = "stop") -> web.Response:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": why_it_ended}
    return web.json_response({"id": "1", "object": "chat.completion", "choices": [choice]})


@asynccontextmanager
async def chat_peer() -> AsyncIterator[ChatPeer]:
    peer = ChatPeer()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", peer.complete)
    async with TestServer(app) as server:
        peer.base_url = str(server.make_url("/v1"))
        yield peer
