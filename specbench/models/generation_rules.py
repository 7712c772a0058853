"""Rules of a checkpoint's generation_config.json over a model's logits: penalties, forced, suppressed and repeated tokens.

A rule depends only on the tokens before a position. A model with rules is therefore just another model, and methods that are
lossless stay so: drafts are proposed and verified with the logits after the rules. The rules are transformers' own logits
processors, in the order in which `generate` applies them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList

from specbench.config.construct import Table
from specbench.decoding.drafting import roll
from specbench.decoding.sampling import Draft, Sampler, Tree, path_to
from specbench.decoding.session import AuxLayers, Ends, Session, Usage
from specbench.decoding.trees import Growth, growth

# Keys of rules, with the values at which they do nothing, in the order of `generate`
RULES: Mapping[str, tuple[object, ...]] = {
    "sequence_bias": (None,),
    "encoder_repetition_penalty": (None, 1.0),
    "repetition_penalty": (None, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "bad_words_ids": (None,),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "exponential_decay_length_penalty": (None,),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
}
OF_ENDS = ("min_length", "min_new_tokens", "forced_eos_token_id", "exponential_decay_length_penalty")  # need EOS ids
OF_ENCODERS = ("encoder_repetition_penalty", "encoder_no_repeat_ngram_size")
# Keys that choose among whole outputs or distributions and are not applied
SEARCHES: Mapping[str, tuple[object, ...]] = {
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0, 0.0),
    "dola_layers": (None,),
    "guidance_scale": (None, 1, 1.0),
}
SAMPLING = ("temperature", "top_k", "top_p")
OTHER_SAMPLING: Mapping[str, tuple[object, ...]] = {
    "typical_p": (None, 1.0),
    "min_p": (None, 0, 0.0),
    "epsilon_cutoff": (None, 0, 0.0),
    "eta_cutoff": (None, 0, 0.0),
}
# Keys of outputs that are not applied
OF_OUTPUTS: Mapping[str, tuple[object, ...]] = {
    "stop_strings": (None, []),
    "watermarking_config": (None,),
    "token_healing": (None, False),
    "remove_invalid_values": (None, False),
}


def rules_of(config: GenerationConfig) -> Table:
    """Return the rules that a checkpoint sets, by their keys."""
    return _set_keys(config, RULES)


def ignored_in(config: GenerationConfig) -> Table:
    """Return the keys of a checkpoint that are not applied, since they are not rules over the next token's logits."""
    return _set_keys(config, SEARCHES) | _set_keys(config, OTHER_SAMPLING) | _set_keys(config, OF_OUTPUTS)


def sampling_of(config: GenerationConfig) -> dict[str, float]:
    """Return the temperature, top-k and top-p that a checkpoint sets: temperature 0 if it says not to sample.

    A checkpoint that samples and sets no temperature has a temperature of 1, as in `generate`.
    """
    if config.do_sample is False:
        return {"temperature": 0.0}
    if not config.do_sample:
        return {}
    return {"temperature": 1.0} | {
        key: float(value) for key in SAMPLING if (value := getattr(config, key, None)) is not None
    }


def _set_keys(config: GenerationConfig, keys: Mapping[str, tuple[object, ...]]) -> Table:
    return {key: value for key, idle in keys.items() if (value := getattr(config, key, None)) not in idle}


def processors(
    rules: Table, start: int, source: Sequence[int] | None, ends: Ends, device: torch.device
) -> LogitsProcessorList:
    """Return the processors of rules for a sequence, in the order of `generate`.

    Args:
        rules: the rules by their keys. Those about EOS do nothing without EOS ids.
        start: the number of tokens that the sequence starts with.
        source: the ids that an encoder reads; None for a decoder-only model.
        ends: what ends the sequence.
        device: the device of the logits.
    """
    made, eos = LogitsProcessorList(), sorted(ends.eos)
    length = None if ends.new_tokens is None else start + ends.new_tokens
    read = None if source is None else torch.tensor([list(source)], device=device)
    makers: Mapping[str, Any] = {
        "sequence_bias": lambda value: hf.SequenceBiasLogitsProcessor(sequence_bias=value),
        "encoder_repetition_penalty": lambda value: hf.EncoderRepetitionPenaltyLogitsProcessor(value, read),
        "repetition_penalty": lambda value: hf.RepetitionPenaltyLogitsProcessor(value),
        "no_repeat_ngram_size": lambda value: hf.NoRepeatNGramLogitsProcessor(value),
        "encoder_no_repeat_ngram_size": lambda value: hf.EncoderNoRepeatNGramLogitsProcessor(value, read),
        "bad_words_ids": lambda value: hf.NoBadWordsLogitsProcessor(value, eos or None),
        "min_length": lambda value: hf.MinLengthLogitsProcessor(value, eos, device=device),
        "min_new_tokens": lambda value: hf.MinNewTokensLengthLogitsProcessor(start, value, eos, device=device),
        "forced_bos_token_id": lambda value: hf.ForcedBOSTokenLogitsProcessor(value),
        "forced_eos_token_id": lambda value: hf.ForcedEOSTokenLogitsProcessor(length, value, device=device),
        "exponential_decay_length_penalty": lambda value: hf.ExponentialDecayLengthPenalty(value, eos, start),
        "suppress_tokens": lambda value: hf.SuppressTokensLogitsProcessor(value, device=device),
        "begin_suppress_tokens": lambda value: hf.SuppressTokensAtBeginLogitsProcessor(
            value, start + (start == 1 and "forced_bos_token_id" in rules), device=device
        ),
    }
    for key in applicable(rules, ends, is_encoded=read is not None):
        made.append(makers[key](rules[key]))
    return made


def applicable(rules: Table, ends: Ends, is_encoded: bool) -> list[str]:
    """Return the keys of the rules that apply to a sequence, in order.

    Rules about EOS do nothing in a sequence of a fixed length, and rules about an encoder's input need an encoder.
    """
    return [
        key
        for key in RULES
        if key in rules
        and (bool(ends.eos) or key not in OF_ENDS)
        and (is_encoded or key not in OF_ENCODERS)
        and (ends.new_tokens is not None or key != "forced_eos_token_id")
    ]


class RuledSession:
    """A session that applies rules to its model's logits."""

    def __init__(self, session: Session, rules: LogitsProcessorList) -> None:
        self._session, self._rules = session, rules

    @property
    def usage(self) -> Usage:
        return self._session.usage

    def keep_states(self, aux_layers: AuxLayers = ()) -> None:
        self._session.keep_states(aux_layers)

    def score(self, ids: list[int], start: int, tree: Tree | None = None) -> Tensor:
        rows = self._session.score(ids, start, tree)  # (len(ids) - start + m, V)
        prefixes = [ids[: i + 1] for i in range(start, len(ids))]
        if tree is not None:
            paths = (path_to(tree.parents, i) for i in range(len(tree.tokens)))
            prefixes += [[*ids, *(tree.tokens[i] for i in path)] for path in paths]
        return torch.cat([self._ruled(prefix, row[None]) for prefix, row in zip(prefixes, rows, strict=True)])

    def _ruled(self, prefix: list[int], logits: Tensor) -> Tensor:
        """Return the logits (1, V) of the token after a prefix."""
        changed: Tensor = self._rules(torch.tensor([prefix], device=logits.device), logits.clone())
        return changed

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        return roll(self, ids, k, sampler, eos)

    def growth(self, ids: list[int], room: int, eos: frozenset[int]) -> Growth:
        return growth(self, ids, room, eos)

    def room(self, ids: list[int]) -> int:
        return self._session.room(ids)

    def hidden(self, ids: list[int], start: int, aux_layers: AuxLayers = ()) -> Tensor:
        return self._session.hidden(ids, start, aux_layers)

    def cached_length(self, ids: list[int]) -> int:
        return self._session.cached_length(ids)

    def logits_of(self, states: Tensor) -> Tensor:
        return self._session.logits_of(states)

    def finish(self) -> None:
        self._session.finish()
