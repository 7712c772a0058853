"""Judges that compare two continuations of a text: a local model, or a server with an OpenAI-compatible API.

Importing the package registers all of them.
"""

from specbench.config.construct import import_modules

import_modules(__name__, __path__)
