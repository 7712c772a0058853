"""SGLang's native server. Written after its documentation and tested only against hand-written responses: it needs a GPU."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.features.servers.dialects.dialect import Arrival, Dialect, TestedOn
from specbench.features.servers.served import (
    Chunk,
    Completion,
    Counters,
    Description,
    ServedRequest,
    ServedSpeculation,
    SpeculationCounts,
)
from specbench.http_client import HttpClient, RequestFailed


class Sglang(Dialect):
    """SGLang: `/generate` with token ids. Each event of a stream repeats the whole output so far."""

    name = "sglang"
    tested_on = TestedOn.answers
    streams_steps = True
    seeds_help = "--enable-deterministic-inference"

    async def describe(self, client: HttpClient, model: str) -> Description | None:
        try:
            found = await client.get_json("/get_model_info")
            weights = found["model_path"]
        except (KeyError, TypeError):
            return None
        except RequestFailed as error:
            if error.status:
                return None
            raise
        try:
            info = await client.get_json("/get_server_info")
        except RequestFailed:
            info = {}
        method = info.get("speculative_algorithm")
        return Description(
            dialect=self.name,
            url=client.server.url,
            version=str(info.get("version", "")),
            model=model or str(info.get("served_model_name") or weights),
            weights=str(weights),
            dtype=str(info.get("dtype", "")),
            context=info.get("context_length") or info.get("max_total_num_tokens"),
            slots=info.get("max_running_requests"),
            speculation=ServedSpeculation(
                is_on=method is not None if info else None,
                method=str(method or ""),
                draft=str(info.get("speculative_draft_model_path") or ""),
                length=info.get("speculative_num_draft_tokens"),
            ),
            has_ids=True,
            repeats_seeds=bool(info.get("enable_deterministic_inference")),
        )

    def body(self, request: ServedRequest, model: str) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        params: dict[str, Any] = {
            "max_new_tokens": request.max_tokens, "temperature": sampling.temperature, "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1, "min_p": sampling.min_p, "ignore_eos": request.ignore_eos,
            "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        }  # fmt: skip
        if request.seed is not None:
            params["sampling_seed"] = request.seed
        if isinstance(request.prompt, str):
            prompt: dict[str, Any] = {"text": request.prompt}
        else:
            prompt = {"input_ids": list(request.prompt)}
        body = {**prompt, "sampling_params": params, "stream": True}
        if request.alternatives:
            body |= {"return_logprob": True, "top_logprobs_num": request.alternatives}
        return "/generate", body

    def completion(self, request: ServedRequest, arrivals: Sequence[Arrival]) -> Completion:
        chunks, ids, text, meta = list[Chunk](), tuple[int, ...](), "", dict[str, Any]()
        for event, seconds in arrivals:
            so_far, meta = tuple(event.get("output_ids") or ()), event["meta_info"]
            if len(so_far) > len(ids):
                chunks.append(Chunk(so_far[len(ids) :], event.get("text", "")[len(text) :], seconds))
                ids, text = so_far, event.get("text", "")
        reason = meta.get("finish_reason") or {}
        kind = reason.get("type", "") if isinstance(reason, dict) else str(reason)
        rounds = meta.get("spec_verify_ct")
        accepted = meta.get("completion_tokens", 0) - rounds if rounds else 0
        rows = zip(meta.get("output_token_logprobs") or (), meta.get("output_top_logprobs") or (), strict=False)
        return Completion(
            tokens=ids,
            text=text,
            chunks=tuple(chunks),
            finish={"stop": "eos"}.get(kind, kind),
            prompt_tokens=meta.get("prompt_tokens"),
            output_tokens=meta.get("completion_tokens"),
            cached_tokens=meta.get("cached_tokens"),
            speculation=SpeculationCounts(rounds, meta.get("spec_draft_token_num", 0), accepted) if rounds else None,
            log_probabilities=tuple(_row(own, top) for own, top in rows),
        )

    async def counters(self, client: HttpClient) -> Counters | None:
        return None

    def flags(self, length: int) -> str:
        return f"--speculative-num-steps {length}" if length else "no --speculative-algorithm"


def _row(own: Sequence[Any], top: Sequence[Sequence[Any]]) -> Mapping[int, float]:
    """Return log-probabilities by id, of triples (log-probability, id, text)."""
    return {**{int(each[1]): float(each[0]) for each in top}, int(own[1]): float(own[0])}
