"""Training of heads: models turn texts into rows of features, stored in shards on disk, and heads are fitted to the rows."""
