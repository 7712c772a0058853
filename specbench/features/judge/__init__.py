"""Judges: a language model compares the outputs of two methods."""
