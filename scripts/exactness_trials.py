"""False alarms and power of `specbench server verify` on simulated servers; writes results/exactness.md.

Simulated servers, not measurements. The outputs go through the comparison, the tests and the verdict of the command. Only the
network and the models are replaced: the logits of a prefix are a random function of it.
"""

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from scripts.sections import environment
from specbench.features.exactness.departures import HOTTER
from specbench.features.exactness.exactness_verdict import verdict_on
from specbench.features.exactness.martingales import GROUPS, SIGNIFICANCE
from specbench.features.exactness.outcome import Outcome
from specbench.features.exactness.token_statistics import categories_of, statistics
from specbench.features.exactness.token_tests import TokenTests
from specbench.features.exactness.tolerance import Allowed
from specbench.features.servers.exactness.allowed import allowed
from specbench.features.servers.exactness.calibration import Deviation, deviation_of
from specbench.features.servers.exactness.kinds import SAMPLINGS, kinds_of
from specbench.features.servers.exactness.output_comparison import ByReference, BySamples
from specbench.features.servers.exactness.reference import Reference
from specbench.features.servers.exactness.served_checks import MOST_CATEGORIES, KindResult
from specbench.features.servers.exactness.served_evidence import Evidence
from specbench.features.servers.exactness.verify_request import EncodedPrompts, ServerVerifyRequest, requests_of
from specbench.features.servers.request_key import PromptKind, RequestKey
from specbench.features.servers.request_log import LoggedRequest
from specbench.features.servers.served import Description, ServedRequest
from specbench.http_client import Server

OUT = Path("results/exactness.md")
VOCABULARY = 40
SHAPES = {"flat": 0.5, "moderate": 2.0, "skewed": 6.0, "repetitive": 60.0}  # standard deviation of the logits
NOISES = (0.0, 1e-5, 1e-2, 0.1)  # rounding of the server's logits, which differs from call to call
SHARES = (0.02, 0.05, 0.1)
TRIALS = 10
FAULTS = ("temperature", "another model", "arg max", "arg max at the first token alone")


class SimulatedModel(Reference):
    """A model whose logits are a random function of the prefix, and an honest server of it.

    Args:
        seed: Which model.
        spread: The standard deviation of its logits.
        noise: The largest difference between the server's logits and the reference's.
    """

    name = "simulated weights"

    def __init__(self, seed: int, spread: float, noise: float) -> None:
        self._seed, self._spread, self._noise = seed, spread, noise

    def row(self, prefix: tuple[int, ...]) -> Tensor:
        """Return the reference's logits of the token after a prefix, (V,)."""
        chooser = np.random.default_rng([self._seed, *prefix])
        return torch.from_numpy(self._spread * chooser.standard_normal(VOCABULARY))

    def served(self, prefix: tuple[int, ...], call: int) -> Tensor:
        """Return the server's logits, (V,): rounding differs from call to call."""
        noise = np.random.default_rng([self._seed, call, *prefix]).uniform(-self._noise, self._noise, VOCABULARY)
        return self.row(prefix) + torch.from_numpy(noise)

    async def logits(self, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
        ids = [*prompt, *output]
        return torch.stack([self.row(tuple(ids[: len(prompt) + i])) for i in range(len(output))])

    def deviation(self, prefixes: Sequence[tuple[int, ...]]) -> Deviation:
        """Return the measured deviation of the server's log-probabilities."""
        differences = [
            (self.served(prefix, 1).log_softmax(-1) - self.row(prefix).log_softmax(-1)).abs().topk(20).values.tolist()
            for prefix in prefixes
        ]
        found = deviation_of("simulated", differences, 4.0 * self._spread)
        assert found is not None
        return found

    def output(self, prompt: tuple[int, ...], request: ServedRequest, seed: int, call: int) -> list[int]:
        """Return an output; equal seeds give equal random numbers, and rounding differs from call to call."""
        sampling, length = request.sampling, request.max_tokens
        chooser, ids = np.random.default_rng([self._seed, 7, seed]), list(prompt)
        for _ in range(length):
            logits = self.served(tuple(ids), call)
            if sampling.is_greedy:
                ids.append(int(logits.argmax()))
            else:
                pi = allowed(logits[None], sampling, 0.0).pi[0].numpy()
                ids.append(int(chooser.choice(VOCABULARY, p=pi / pi.sum())))
        return ids[len(prompt) :]


def honest_verdict(seed: int) -> tuple[str, Outcome, str]:
    """Return the shape of a simulated honest server, the outcome of its verification, and the line."""
    chooser = np.random.default_rng([1, seed])
    shape = list(SHAPES)[seed % len(SHAPES)]
    outputs, length, prompts = int(chooser.integers(1, 65)), int(chooser.integers(1, 17)), int(chooser.integers(1, 9))
    model = SimulatedModel(seed, SHAPES[shape], float(chooser.choice(NOISES)))
    as_samples = seed % 5 == 4
    description = Description(backend="simulated", url="http://127.0.0.1", has_ids=not as_samples)
    endpoint = cast(Any, SimpleNamespace(description=description))
    kinds = kinds_of(SAMPLINGS, (1, 8), True, (PromptKind.raw,))
    starts = [tuple(chooser.integers(0, VOCABULARY, 6).tolist()) for _ in range(prompts)]
    if as_samples:
        comparison: ByReference | BySamples = BySamples(
            endpoint, endpoint, sum(not k.sampling.is_greedy for k in kinds)
        )
    else:
        comparison = ByReference(endpoint, None, model, {})
        comparison.deviation = model.deviation(starts * (48 // len(starts) + 1))
        comparison.tolerance = comparison.deviation.allowed
    request = ServerVerifyRequest(on=Server(description.url), prompts=(), outputs=outputs, max_tokens=length)
    results, numbers = [], count()
    for kind in kinds:
        sent = requests_of(request, kind, EncodedPrompts(list(starts), []), endpoint)
        entries, off = (
            [_answer(model, key, each, next(numbers)) for key, each in rows]
            for rows in (sent, comparison.requests_to_off(kind, sent))
        )
        results.append(asyncio.run(comparison.result(kind, entries, off)))
    outcome, line = verdict_on(_evidence(description, comparison, results))
    return ("text only, " if as_samples else "") + shape, outcome, line


def seed_of(request: ServedRequest, number: int) -> int:
    """Return the seed that an honest server draws an answer with: that of the request, else one of its own."""
    return 10**9 + number if request.seed is None else request.seed


def _answer(model: SimulatedModel, key: RequestKey, request: ServedRequest, number: int) -> LoggedRequest:
    """Return the answer to a request."""
    prompt = cast(tuple[int, ...], request.prompt)
    tokens = model.output(prompt, request, seed_of(request, number), number)
    return LoggedRequest(key=key, prompt=list(prompt), tokens=tokens, text="".join(f" w{token}" for token in tokens))


def _evidence(description: Description, comparison: ByReference | BySamples, results: list[KindResult]) -> Evidence:
    return Evidence(
        description=description, reference=comparison.name, results=results, deviation=comparison.deviation,
        control_deviation=None, tolerance=comparison.tolerance, has_drafted=True, has_died=False,
    )  # fmt: skip


def found(fault: str, share: float, seed: int, outputs: int, length: int) -> bool:
    """Return whether the tests of all kinds of requests with equal sampling parameters together find a fault."""
    generator = torch.Generator().manual_seed(seed)
    tests = {group: TokenTests() for group in GROUPS}
    for _ in range(outputs):
        logits = 2.0 * torch.randn(length, VOCABULARY, generator=generator, dtype=torch.float64)
        draft = logits + torch.randn(length, VOCABULARY, generator=generator, dtype=torch.float64)
        pi = logits.softmax(-1)
        best = torch.zeros_like(pi).scatter_(-1, pi.argmax(-1, keepdim=True), 1.0)
        other = {"temperature": (logits / HOTTER).softmax(-1), "another model": draft.softmax(-1)}.get(fault, best)
        drawn = (1.0 - share) * pi + share * other
        if fault == FAULTS[-1]:
            drawn[1:] = pi[1:]
        tokens = torch.multinomial(drawn, 1, generator=generator)[:, 0]
        few = categories_of(Allowed.exactly(pi), tokens, {"draft": draft.softmax(-1)}, MOST_CATEGORIES)
        values = statistics(few, (0,), tokens.tolist())
        for group, part in GROUPS.items():
            tests[group].add(few, values, part)
    sampled = [kind for kind in kinds_of(SAMPLINGS, (1, 8), True, tuple(PromptKind)) if not kind.sampling.is_greedy]
    checks = len(sampled) + len({kind.sampling for kind in sampled})
    number = checks * sum(len(each.results) for each in tests.values()) + 2 * sum(kind.is_seeded for kind in sampled)
    return any(result.p * number <= SIGNIFICANCE for each in tests.values() for result in each.results.values())


def default_outputs() -> tuple[int, int]:
    """Return how many outputs with equal sampling parameters `server verify` compares by default, and their tokens."""
    default = ServerVerifyRequest(on=Server("http://127.0.0.1"), prompts=())
    kinds = kinds_of(default.samplings, default.concurrencies, default.seeds, default.kinds)
    return sum(kind.sampling == SAMPLINGS[1] for kind in kinds) * default.outputs, default.max_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=400)
    parser.add_argument("--trials", type=int, default=TRIALS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    outcomes: dict[str, Counter[Outcome]] = {}
    accused = []
    for seed in range(args.servers):
        shape, outcome, line = honest_verdict(seed)
        outcomes.setdefault(shape, Counter())[outcome] += 1
        if outcome is Outcome.differs:
            accused.append(f"- server {seed}: {line}")
        print(f"\r{seed + 1} of {args.servers} servers, {len(accused)} not exact", end="", flush=True)
    outputs, length = default_outputs()
    table = []
    for fault in FAULTS:
        cells = []
        for share in SHARES:
            times = sum(found(fault, share, seed, outputs, length) for seed in range(args.trials))
            cells.append(f"{times} of {args.trials}")
            print(f"\r{fault}, {share:.0%}: {cells[-1]}      ", flush=True)
        table.append(f"| {fault} | {' | '.join(cells)} |")
    OUT.write_text(_page(args.servers, outcomes, accused, outputs, length, table))
    print(f"{OUT}")


def _page(
    servers: int, outcomes: dict[str, Counter[Outcome]], accused: list[str], outputs: int, length: int, table: list[str]
) -> str:
    heads = [Outcome.exact, Outcome.unfound, Outcome.inconclusive, Outcome.differs]
    rows = [f"| {shape} | {' | '.join(str(counts[each]) for each in heads)} |" for shape, counts in outcomes.items()]
    bound = 1.0 - 0.05 ** (1.0 / servers)
    upper = f"; at most {bound:.2%} per run at 95 % confidence" if not accused else ""
    shapes = ", ".join(f"{name} {value:g}" for name, value in SHAPES.items())
    verdicts, faults, dashes = "\n".join([*rows, *accused]), "\n".join(table), " --: |" * len(SHARES)
    columns = " | ".join(f"{share:.0%}" for share in SHARES)
    return f"""# False alarms and power of `server verify`, simulated

Simulated servers, not measurements; `make exactness-trials` writes this page. The outputs pass through the comparison, the
tests and the verdict of `specbench server verify`. Only the network and the models are replaced.

## {servers} honest servers

Each server has its own distributions over {VOCABULARY} tokens, 1 to 64 outputs of 1 to 16 tokens for each kind of requests,
1 to 8 prompts, greedy and sampled requests with and without seeds, and logits that are rounded by up to {max(NOISES):g}. The
distributions differ in the standard deviation of their logits: {shapes}. A fifth of the servers return text only, and are
compared with samples of a second server. With few outputs or nearly certain continuations the control is not rejected, and
the verdict is inconclusive.

{len(accused)} of {servers} servers are called not exact{upper}. All tests of a run share a significance level of
{SIGNIFICANCE:g}.

| distributions | exact | no departure found | inconclusive | not exact |
| :-- | --: | --: | --: | --: |
{verdicts}

## Faults that are found

The fault is in a share of all tokens. A server is sent the default number of requests: {outputs:,} outputs of {length} tokens
for each setting of the sampling parameters, over six kinds of requests together. A column is the share of tokens; in the last
row, the share of outputs, of which the first token is the most likely one: so few outputs do not show it, and the verdict
says so. The other temperature is {HOTTER:g} times the requested one. The other model is a draft model that `--draft` names.

| fault | {columns} |
| :-- |{dashes}
{faults}

{environment(is_timed=False)}
"""


if __name__ == "__main__":
    main()
