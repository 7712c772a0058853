"""Plot how often a drafted token is accepted, by its position in the draft. Written as notebook cells."""

# %% Measure. The same call returns a finished run without measuring it again.
import matplotlib.pyplot as plt

import specbench

result = specbench.run("sd", "tiny", "gsm8k", limit=8, gamma=6, repeats=1, data="synthetic", max_new_tokens=64)

# %% Look at the table.
print(result.table().to_string(index=False))

# %% Acceptance by position is a data frame.
positions = result.by_position()

# %% Plot.
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.bar(positions["position"], positions["acceptance_rate"])
axes.set(xlabel="position in the draft", ylabel="acceptance rate", ylim=(0, 1))
figure.savefig("acceptance.png")

# %% Single generations.
longest = max(result.records(), key=lambda record: len(record.tokens))
print(f"longest output: {len(longest.tokens)} tokens by {longest.method} on sample {longest.sample}")
