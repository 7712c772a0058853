"""Formulas of the methods' speeds, one file for a paper or a family. Importing the package registers all of them.

None of them imports torch, so that reports do not.
"""

from specbench.config.construct import import_modules

import_modules(__name__, __path__)
