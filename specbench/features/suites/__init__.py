"""Suites: the grid of a paper's table or figure, its runs, and its report."""
