"""Decoding methods, one file each. Importing the package registers all of them."""

from specbench.config.construct import import_modules

import_modules(__name__, __path__)
