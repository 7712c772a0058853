"""Metrics of generated texts, with signatures, one file per library. Importing them does not import torch."""
