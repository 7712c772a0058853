"""Any other server with OpenAI's interface: text in, text out. Tested only against hand-written responses."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specbench.features.servers.backends.answers import Arrival, OpenAiStream, single_model
from specbench.features.servers.backends.backend import Backend, TestedOn
from specbench.features.servers.served import Completion, Description, ServedRequest
from specbench.http_client import HttpClient


class OpenAi(Backend):
    """OpenAI's `/v1/completions` and `/v1/chat/completions`, without token ids. Top-k and min-p may be ignored."""

    name = "openai"
    tested_on = TestedOn.answers

    async def describe(self, client: HttpClient, model: str) -> Description | None:
        entry = await single_model(client, model)
        return Description(backend=self.name, url=client.server.url, model=entry.id, repeats_seeds=False)

    def body(self, request: ServedRequest, model: str) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": model, "max_tokens": request.max_tokens, "temperature": sampling.temperature, "top_p": sampling.top_p,
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.min_p:
            body["min_p"] = sampling.min_p
        if request.seed is not None:
            body["seed"] = request.seed
        if request.ignore_eos:
            body["ignore_eos"] = True
        if request.messages:
            return "/v1/chat/completions", {**body, "messages": list(request.messages)}
        if not isinstance(request.prompt, str):
            raise ValueError("a server with OpenAI's interface takes no token ids")
        return "/v1/completions", {**body, "prompt": request.prompt}

    def completion(self, request: ServedRequest, arrivals: Sequence[Arrival]) -> Completion:
        found = OpenAiStream(arrivals).completion()
        return replace(
            found, prompt=None, tokens=None
        )  # this interface has no ids, and a server's own are not documented
