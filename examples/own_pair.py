"""Measure two local models. Replace the paths with folders or Hugging Face ids of your own models."""

import sys
from pathlib import Path

import specbench

MODELS = Path(specbench.__path__[0]) / "tiny" / "models"

pair = Path("my-pair.toml")
draft, target = sys.argv[1:] or (MODELS / "draft", MODELS / "target")
pair.write_text(f'[models.draft]\npath = "{draft}"\n\n[models.target]\npath = "{target}"\n')
result = specbench.run("sd", str(pair), "gsm8k", limit=4, repeats=1, data="synthetic", max_new_tokens=32)
print(result.table()[["method", "tokens_per_second", "speedup", "acceptance_rate"]].to_string(index=False))
