"""Whether the outputs of a served model follow its reference."""
