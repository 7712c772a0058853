"""Resolution of requests to models, methods, tasks and planned runs, without loading weights."""
