"""Checks of this machine and installation: values with advice, which `specbench doctor` prints."""
