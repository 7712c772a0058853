"""Formats of reports: Markdown, HTML, LaTeX, CSV and JSON."""
