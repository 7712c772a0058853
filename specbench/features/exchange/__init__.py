"""Acceptance profiles of other tools: read, written and compared with ours."""
