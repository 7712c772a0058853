"""What would be measured: requests resolved to models, methods, tasks and plans, without loading weights."""
