"""Comparing measurements: snapshots, checks, significance and verdicts."""
