"""The chunk of the gated delta rule's prefill form, for whoever plans without torch.

Does not: compute.
"""

CHUNK = 64
"""Tokens per chunk. Source: flash-linear-attention, chunk_gated_delta_rule."""
