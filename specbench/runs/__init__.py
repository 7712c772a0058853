"""Run folders: their records, locks and index files."""
