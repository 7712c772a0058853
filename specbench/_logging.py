"""Suppression of messages that libraries print when they are imported."""

import logging
import os
import pickle
import sys
from typing import Any


def quiet() -> None:
    """Suppress the messages. Call before transformers is imported, in every process."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DATASETS_VERBOSITY", "critical")  # it also raises the errors that it logs
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "0" if sys.stderr.isatty() else "1")
    # transformers imports torchao if it is installed, which warns of missing extensions that are not used here:
    os.environ.setdefault("TORCHAO_FORCE_SKIP_LOADING_SO_FILES", "1")
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)


def quietly(pickled: bytes, *more: Any) -> None:
    """Suppress messages, and call a pickled (function, arguments) with `more` arguments. The entry point of a new process."""
    quiet()
    function, arguments = pickle.loads(pickled)
    function(*arguments, *more)
