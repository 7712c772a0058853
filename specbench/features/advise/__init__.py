"""Advice: recordings of a target's outputs, predictions from them, and measurements of the best candidates."""
