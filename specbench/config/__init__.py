"""TOML files, options and presets, read without torch."""
