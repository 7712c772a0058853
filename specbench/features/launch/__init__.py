"""Launchers: the runs of a suite as jobs on this machine, a Slurm cluster or a Ray cluster.

The results folder is the queue and the record. A job is one `specbench run` of one run folder, and a run is done when its
folder is complete. A driver that ends loses nothing, and the same command continues.
"""
