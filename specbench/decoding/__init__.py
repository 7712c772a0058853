"""Decoding: sampling and verification, drafts, methods as generators of rounds, and the driver."""
