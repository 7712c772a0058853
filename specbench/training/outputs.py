"""The outputs of a pair's models that heads are trained on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from transformers import GenerationConfig, PreTrainedModel

from specbench.decoding.loop import GenerationLimits
from specbench.decoding.sampling import Sampler
from specbench.models.loaded_pair import LoadedPair
from specbench.training.texts import Text


def sampler_of(pair: LoadedPair, text: Text, seed: int, temperature: float) -> Sampler:
    """Return a sampler whose draws depend on the seed and the text alone."""
    number = hash((seed, text.number)) & (2**62 - 1)
    return Sampler(temperature, generator=torch.Generator(pair.device).manual_seed(number))


def limits_of(pair: LoadedPair, text: Text) -> GenerationLimits:
    """Return what ends an output after the prompt of a text."""
    return GenerationLimits(
        eos=pair.eos,
        max_new_tokens=text.max_new_tokens,
        window=pair.window,
        stop=text.stop,
        detokenise=lambda ids: str(pair.tokenizer.decode(ids, skip_special_tokens=True)),
    )


@dataclass(frozen=True)
class Writing:
    """How a model's outputs are generated: its role, the most tokens of a text, the temperature and the seed."""

    role: str
    most: int
    temperature: float
    seed: int

    def answered(self, pair: LoadedPair, texts: Sequence[Text]) -> list[Text]:
        """Return the texts with the model's outputs in place of the reference answers, up to the first stop token.

        They are generated in one batch, with transformers. A prompt that leaves no room has an empty output.
        """
        window = pair.window_of(pair.models).length
        longest = min(self.most, window or self.most)
        rooms = {text.number: min(text.max_new_tokens, longest - len(text.prompt)) for text in texts}
        batch = [text for text in texts if rooms[text.number] > 0]
        width = max((len(text.prompt) for text in batch), default=0)
        new = max((rooms[text.number] for text in batch), default=0)
        fits = window is None or width + new <= window
        rows: list[list[int]] = []
        for part in [batch] if fits else [[text] for text in batch]:
            rows += self._generated(pair, part, max(rooms[text.number] for text in part)) if part else []
        outputs = {text.number: row[: rooms[text.number]] for text, row in zip(batch, rows, strict=True)}
        return [replace(text, rest=_ended(outputs.get(text.number, []), limits_of(pair, text))) for text in texts]

    def _generated(self, pair: LoadedPair, texts: Sequence[Text], new: int) -> list[list[int]]:
        """Return `new` tokens after each prompt; those after an end-of-sequence token are padding."""
        model: PreTrainedModel = pair.models[self.role]
        width, device, pad = max(len(text.prompt) for text in texts), model.device, min(pair.eos, default=0)
        ids = torch.tensor([[pad] * (width - len(text.prompt)) + text.prompt for text in texts])  # (b, n)
        mask = torch.tensor([[0] * (width - len(text.prompt)) + [1] * len(text.prompt) for text in texts])  # (b, n)
        extra = range(pair.vocabulary, model.get_output_embeddings().weight.shape[0])
        sampling = {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}
        config = GenerationConfig(
            max_new_tokens=new,
            eos_token_id=sorted(pair.eos) or None,
            pad_token_id=pad,
            suppress_tokens=list(extra) or None,
            **(sampling if self.temperature > 0.0 else {"do_sample": False}),
        )
        own, model.generation_config = model.generation_config, config
        try:
            with torch.inference_mode(), torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.manual_seed(hash((self.seed, texts[0].number)) & (2**62 - 1))
                out = model.generate(ids.to(device), attention_mask=mask.to(device), generation_config=config)
        finally:
            model.generation_config = own
        return [row[width:] for row in out.tolist()]


def _ended(tokens: list[int], limits: GenerationLimits) -> list[int]:
    """Return tokens up to and including the first end-of-sequence token, or the token that completes a stop string."""
    for count, token in enumerate(tokens, 1):
        if token in limits.eos or limits.stopped(tokens[:count]):
            return tokens[:count]
    return tokens
