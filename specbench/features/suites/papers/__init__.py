"""The papers' claims: expectations, what decides them, and the index of what is reproduced."""
