"""Floor 2: training of heads. Texts are collected into rows by the models, in shards on disk; rows are fitted in memory."""
