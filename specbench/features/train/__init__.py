"""Training of heads and drafts for a pair, with a measured trial."""
