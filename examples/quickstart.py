"""Measure speculative decoding on the bundled pair, and print the table and the conclusion."""

import specbench

result = specbench.run(method="sd", pair="tiny", task="gsm8k", limit=8, data="synthetic")
print(result.table().to_string(index=False))
print("\n".join(result.conclusion()))
