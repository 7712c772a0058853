"""Tasks: their rows, prompts and synthetic counterparts."""
