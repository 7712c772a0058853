"""Plans for other machines: time and memory from architectures alone."""
