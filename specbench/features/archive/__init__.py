"""Archives of runs, with checksums."""
