"""Checks of what the models of a pair must have in common: their tokenizers, and EOS ids within the vocabulary."""

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specbench.errors import ConfigError
from specbench.models.limited_session import Reach

# Tokenizers that split this text alike are taken to be the same.
PROBE = "How many apples?\n  Zwölf — 12 + 30 = 42; def f(x):\n\treturn x ** 2"


def eos_of(model: PreTrainedModel, reach: Reach) -> frozenset[int]:
    """Return the EOS ids with which transformers' `generate` ends a model's output; empty if it has none.

    Raises ConfigError for an id that the model cannot write.
    """
    config = model.generation_config or model.config
    found = config.eos_token_id
    ids = frozenset([] if found is None else [found] if isinstance(found, int) else found)
    for each in sorted(ids):
        if not 0 <= each < reach.entries:
            raise ConfigError(
                f"model '{reach.role}': {model.config.name_or_path} has the EOS id {each}, and {reach.entries} tokens;"
                " help: correct eos_token_id in its generation_config.json"
            )
    return ids


def require_same_tokenizer(one: PreTrainedTokenizerBase, two: PreTrainedTokenizerBase, role: str, other: str) -> None:
    """Raise ConfigError unless two tokenizers have the same base vocabulary and split text alike.

    One of them may have more tokens after the base vocabulary.
    """
    shared = min(len(one), len(two))
    a, b = ({i: t for t, i in each.get_vocab().items() if i < shared} for each in (one, two))
    if (
        one.vocab_size != two.vocab_size
        or a != b
        or len({str(t.encode(PROBE, add_special_tokens=False)) for t in (one, two)}) > 1
    ):
        raise ConfigError(
            f"the tokenizers differ: {role} has {one.name_or_path} ({one.vocab_size} tokens), "
            f"{other} has {two.name_or_path} ({two.vocab_size}); models that decode together must share one"
        )
