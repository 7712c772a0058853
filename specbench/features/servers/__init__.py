"""Model servers as black boxes: whether their speculation is exact, and whether it pays under load."""
