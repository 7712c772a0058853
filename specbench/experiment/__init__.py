"""From a request to results: resolution, plans, runs, suites and scores."""
