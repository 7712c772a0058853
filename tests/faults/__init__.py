"""The fault campaign: what users, machines and attackers do to specbench, by seed, briefly in the tests or for an hour.

`make faults` runs all of it and writes results/faults.md. Each attack drives the command, or files that the command reads.
"""
