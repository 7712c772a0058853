"""Load on two servers in alternating blocks, and whether speculation pays."""
