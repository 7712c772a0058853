"""Measurement of planned runs: loaded models, decoding, scoring and summaries, in this process or in a new one."""
