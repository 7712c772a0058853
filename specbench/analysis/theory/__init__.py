"""Predictions of the papers' theory, from plain numbers, one module per paper.

Throughout: acceptance events are independent with a rate per proposing model, and drawing and combining cost nothing.
`cost(i, k)` is what a forward of model i costs that feeds k tokens. The papers assume cost(i, k) = cost(i, 1): a block for
the cost of one. Giving the measured cost instead yields the corrected prediction.
"""
