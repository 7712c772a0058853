"""Floor 0: what libraries say at their import that nobody here needs to hear."""

import logging
import os
import pickle
import sys
from typing import Any


def quiet() -> None:
    """Call before transformers is imported, in every process."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "0" if sys.stderr.isatty() else "1")
    # transformers imports torchao where it is there, which tells of extensions that nothing here needs:
    os.environ.setdefault("TORCHAO_FORCE_SKIP_LOADING_SO_FILES", "1")
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)


def quietly(pickled: bytes, *more: Any) -> None:
    """Call a pickled (function, arguments) with more of them, its libraries quiet: what a new process begins with."""
    quiet()
    function, arguments = pickle.loads(pickled)
    function(*arguments, *more)
