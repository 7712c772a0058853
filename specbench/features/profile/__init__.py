"""Profiles: forward times and acceptance rates of the models of a chain, and the chain that theory prefers."""
