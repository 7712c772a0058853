"""Models: where they come from, how they are loaded and run, and sessions over them."""
