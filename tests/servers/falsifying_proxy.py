"""A proxy in front of llama.cpp's server that plants a fault in what passes through it."""

import contextlib
import json
import math
import random
from collections.abc import Iterator
from typing import Any

import aiohttp
from aiohttp import web

from tests.fixtures.model_server import serving

FAULTS = (
    "temperature", "top-p ignored", "greedy drafts, wrong rule", "bonus token from the draft", "dropped seed",
    "cached prefix of another prompt", "one token in 200 changed",
)  # fmt: skip
DRAFT_LENGTH = 3
VOCABULARY = 1024
HOTTER = 1.3


class _Proxy:
    """Forwards requests to `target`. Two faults decode with the distributions of `target` and of the server `draft`."""

    def __init__(self, target: str, draft: str, fault: str) -> None:
        self.target, self.draft, self.fault = target, draft, fault
        self.chooser = random.Random(0)
        self.earlier: list[list[int]] = []
        self.app = web.Application(client_max_size=2**24)
        self.app.router.add_route("*", "/{path:.*}", self.handle)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        async with aiohttp.ClientSession() as session:
            if request.method == "GET":
                async with session.get(self.target + str(request.rel_url)) as answer:
                    return web.Response(body=await answer.read(), status=answer.status, content_type="application/json")
            body = await request.json()
            if request.path == "/completion" and body.get("stream"):
                return await self.complete(session, request, body)
            async with session.post(self.target + request.path, json=body) as answer:
                return web.Response(body=await answer.read(), status=answer.status, content_type="application/json")

    async def complete(
        self, session: aiohttp.ClientSession, request: web.Request, body: dict[str, Any]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        own = self.fault in ("greedy drafts, wrong rule", "bonus token from the draft")
        if own and body["temperature"] > 0 and body["n_predict"] > 1:
            await self._decode(session, response, body)
            return response
        async with session.post(self.target + "/completion", json=self._changed(body)) as answer:
            async for line in answer.content:
                await response.write(self._line(line) if self.fault.startswith("one token") else line)
        return response

    def _changed(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the request with the fault in it."""
        if self.fault == "temperature":
            return {**body, "temperature": HOTTER * body["temperature"]}
        if self.fault == "top-p ignored":
            return {**body, "top_p": 1.0}
        if self.fault == "dropped seed":
            return {key: value for key, value in body.items() if key != "seed"}
        if self.fault == "cached prefix of another prompt" and body["cache_prompt"] and body["n_predict"] > 1:
            self.earlier.append(body["prompt"])
            other = self.earlier[len(self.earlier) // 2]
            half = len(body["prompt"]) // 2
            return {**body, "prompt": [*other[:half], *body["prompt"][half:]]}
        return body

    def _line(self, line: bytes) -> bytes:
        """Change the token of one event in 200."""
        if line.startswith(b"data: {") and self.chooser.random() < 1 / 200:
            event = json.loads(line[6:])
            if event.get("tokens"):
                event["tokens"] = [self.chooser.randrange(5, VOCABULARY) for _ in event["tokens"]]
                return b"data: " + json.dumps(event).encode() + b"\n"
        return line

    async def _decode(self, session: aiohttp.ClientSession, response: web.StreamResponse, body: dict[str, Any]) -> None:
        """Write an output of faulty speculative decoding: the first token is right."""
        chooser = random.Random(body.get("seed", self.chooser.random()))
        prompt, t, ids = body["prompt"], body["temperature"], list[int]()

        async def at(url: str) -> dict[int, float]:
            return await _distribution(session, url, [*prompt, *ids], t)

        def draw(p: dict[int, float]) -> int:
            return chooser.choices(list(p), list(p.values()))[0]

        ids.append(draw(await at(self.target)))
        while len(ids) < body["n_predict"]:
            for _ in range(DRAFT_LENGTH):
                p, q = await at(self.target), await at(self.draft)
                token = max(q, key=q.__getitem__) if self.fault.startswith("greedy") else draw(q)
                if chooser.random() < p.get(token, 0.0) / q[token]:
                    ids.append(token)  # right for a sampled draft, wrong for the most likely token
                    continue
                rest = {key: max(p[key] - q.get(key, 0.0), 0.0) for key in p}
                ids.append(draw(rest if sum(rest.values()) > 0.0 else p))
                break
            else:
                ids.append(draw(await at(self.draft if self.fault.startswith("bonus") else self.target)))
        for token in ids[: body["n_predict"]]:
            await response.write(_event({"content": "x", "tokens": [token], "stop": False}))
        last = {
            "content": "", "tokens": [], "stop": True, "stop_type": "limit", "tokens_evaluated": len(prompt),
            "tokens_predicted": body["n_predict"], "timings": {"cache_n": 0},
        }  # fmt: skip
        await response.write(_event(last))


async def _distribution(session: aiohttp.ClientSession, url: str, ids: list[int], t: float) -> dict[int, float]:
    """Return the distribution of the next token by id at temperature t."""
    body = {"prompt": ids, "n_predict": 1, "n_probs": VOCABULARY, "temperature": 0.0, "cache_prompt": True}
    async with session.post(f"{url}/completion", json=body) as answer:
        row = (await answer.json())["completion_probabilities"][0]["top_logprobs"]
    weights = {int(each["id"]): math.exp(each["logprob"] / t) for each in row}
    total = sum(weights.values())
    return {key: weight / total for key, weight in weights.items()}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@contextlib.contextmanager
def falsified(target: str, fault: str, draft: str = "") -> Iterator[str]:
    """Serve a proxy with a fault on a free port, and yield its URL."""
    with serving(_Proxy(target, draft, fault).app) as url:
        yield url
