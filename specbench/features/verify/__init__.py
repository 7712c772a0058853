"""Verification: does a method, as implemented, follow the distribution that it declares, on this pair and device?"""

PROMPTS, TOKENS, CUTS = 6, 24, 6  # defaults: prompts, new tokens, sampled outputs per prompt
