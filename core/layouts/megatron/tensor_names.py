"""Names of tensors in Megatron's models, with numbers of layers and of experts in them."""

import re

EMBEDDING, OUTPUT_LAYER = "embedding.word_embeddings.weight", "output_layer.weight"
LAYER = re.compile(r"(decoder\.layers\.)(\d{1,6})\.(.+)", re.ASCII | re.DOTALL)
"""A tensor of a layer of the decoder: what precedes the number, the number, and the name in the layer."""
EXPERT = re.compile(
    r"(.*\.mlp\.experts\.(?:local_experts\.|linear_fc[12]\.(?:weight|bias)))(\d{1,6})((?:\..+)?)", re.ASCII | re.DOTALL
)
"""A tensor of one expert: what precedes the number, the number, and what follows it."""
EXPERTS_SECOND = re.compile(
    r".*\.mlp\.experts\.(?:weight2|(?:local_experts\.\d+\.)?linear_fc2\.weight\d*)", re.ASCII | re.DOTALL
)
"""The second matrix of one expert or of all."""
