"""Floor 0: how texts become numbers: metrics with their signatures, one file a library. No torch."""
