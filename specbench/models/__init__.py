"""Models: resolution, loading, engines, and sessions."""
