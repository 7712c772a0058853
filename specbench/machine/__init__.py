"""The machine: its fingerprint, and checks of whether it is suitable for measurements."""
