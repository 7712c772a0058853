"""Run models on an engine of your own: here a table that gives the next token's logits by the last token alone."""

import torch

from specbench.config.pair import folder
from specbench.models.checkpoints import load_tokenizer
from specbench.models.engines import Engine, LoadedModel
from specbench.models.model_runner import ModelRunner, Output


def normal(seed, size):
    return torch.randn(size, size, generator=torch.Generator().manual_seed(seed))


class TableModelRunner(ModelRunner):
    name, device, branches = "table", torch.device("cpu"), True

    def __init__(self, logits):
        self.logits = logits  # (V, V)

    def feed(self, feed, rows):
        return Output(self.logits[feed.tokens[-rows:]], None)

    def keep(self, start, path):
        return  # nothing is cached

    def logits_of(self, states):
        raise ValueError("a table has no states")


class TableModel(LoadedModel):
    name, device, dtype, branches = "table", torch.device("cpu"), torch.float32, True

    def __init__(self, tokenizer, role):
        self.tokenizer, size = tokenizer, len(tokenizer)
        self.embedded = self.vocabulary = size
        self.logits = 3.0 * normal(0, size) + normal(len(role), size)  # the models of a pair are alike

    def model_runner(self, vocabulary, source):
        return TableModelRunner(self.logits[:, :vocabulary])


class TableEngine(Engine, name="table"):
    def unsupported(self, model, architecture, device):
        return "the engine table has no encoder" if architecture.encoder_decoder else ""

    def load(self, role, model, base, device):
        return TableModel(load_tokenizer(role, str(folder(model.spec.path, base))), role)


if __name__ == "__main__":
    from pathlib import Path

    import specbench

    models = "".join(
        f'[models.{role}]\npath = "specbench:tiny/models/target"\nengine = "table"\n' for role in ("draft", "target")
    )
    Path("table.toml").write_text(models)
    specbench.register(TableEngine)
    result = specbench.run("sd", "table.toml", "gsm8k", limit=4, repeats=1, max_new_tokens=32, data="synthetic")
    print(specbench.report(result, "md"))
