"""The machine: what it is, and whether it has what specbench needs."""
