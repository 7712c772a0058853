"""Judges that compare two continuations of a text: a local model, or a server with an OpenAI-compatible API."""

from specbench.judges.endpoint import Endpoint
from specbench.judges.judge import Exchange, Judge, Judgment
from specbench.judges.local import Likelihood, Prompted

__all__ = ["Endpoint", "Exchange", "Judge", "Judgment", "Likelihood", "Prompted"]
