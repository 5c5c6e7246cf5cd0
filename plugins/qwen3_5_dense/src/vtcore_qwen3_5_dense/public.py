"""What other architectures may build on: the common arch, config, decoder stack, mixers, rules and ops.

Does not: hold code of its own. Everything else in this distribution may change without notice.
"""

from vtcore_qwen3_5_dense.arch import OPS, Qwen35Arch, hybrid_cache_specs
from vtcore_qwen3_5_dense.attention import GatedAttention
from vtcore_qwen3_5_dense.config import Qwen35Config, parse_config, read_count, refuse_field, text_section
from vtcore_qwen3_5_dense.gdn import GatedDeltaNet
from vtcore_qwen3_5_dense.model import FeedForward, Qwen35Model, SwiGLU
from vtcore_qwen3_5_dense.weights import full_attention_rules, linear_attention_rules, swiglu_rules

__all__ = [
    "OPS",
    "FeedForward",
    "GatedAttention",
    "GatedDeltaNet",
    "Qwen35Arch",
    "Qwen35Config",
    "Qwen35Model",
    "SwiGLU",
    "full_attention_rules",
    "hybrid_cache_specs",
    "linear_attention_rules",
    "parse_config",
    "read_count",
    "refuse_field",
    "swiglu_rules",
    "text_section",
]
