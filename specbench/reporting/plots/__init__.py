"""Plots of runs and suites as files."""
