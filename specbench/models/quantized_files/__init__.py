"""Checkpoints that are quantized already: their layers become codes, scales and zeros without a float copy of the model.

`stored_format` says which of them are read here. A file per format decodes the tensors of one layer (`gptq`, `awq`,
`compressed_tensors`, `gguf_blocks`), `stored_layers` loads them.
"""
