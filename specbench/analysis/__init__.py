"""Numbers from the records of a run: speeds, acceptance, quality, predictions, and their intervals."""
