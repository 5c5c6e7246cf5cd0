"""Sampling parameters of vLLM and transformers that are none here, each with the reason and a way out.

Does not: check values; whoever names one of these gets its sentence, whatever the value.

Source of vLLM's names: vLLM 0.32.0, sampling_params.py (SamplingParams, BeamSearchParams); the guided_* names
and best_of are of versions before.
"""

from __future__ import annotations

from collections.abc import Mapping

_GRAMMAR = (
    "output is not bound to a grammar or schema in this version; leave it out and ask for the format in the "
    "prompt"
)
_BEAM = "beam search is not served; leave it out, and draw several samples with n"
_BEST_OF = "samples are not ranked; leave it out, draw them with n and choose by their logprobs"
_PROCESSORS = (
    "no code of a request runs here; leave it out, and use logit_bias, allowed_token_ids or bad_words"
)
_TRUNCATE = "prompts are not cut in silence; leave it out and shorten the prompt_token_ids yourself"
_ID_LOGPROBS = "logprobs of chosen ids are not reported; leave it out, and take them out of logprobs=-1"
_OUTPUT = "outputs have one form here; leave it out"
_INNER = "this is of vLLM's inner workings; leave it out"
_MAX_TOKENS = "it is called max_tokens here; use that name"

FOREIGN_PARAMS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "structured_outputs",
            "guided_decoding",
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "guided_json_object",
            "guided_decoding_backend",
            "guided_whitespace_pattern",
            "structural_tag",
            "response_format",
        ),
        _GRAMMAR,
    ),
    **dict.fromkeys(
        ("use_beam_search", "beam_width", "num_beams", "length_penalty", "early_stopping"), _BEAM
    ),
    **dict.fromkeys(("best_of",), _BEST_OF),
    **dict.fromkeys(("logits_processors", "logits_processor", "extra_args", "vllm_xargs"), _PROCESSORS),
    **dict.fromkeys(("truncate_prompt_tokens", "truncation_side"), _TRUNCATE),
    **dict.fromkeys(("logprob_token_ids", "prompt_logprob_token_ids"), _ID_LOGPROBS),
    **dict.fromkeys(("flat_logprobs", "output_kind", "stream_interval", "stream", "echo", "suffix"), _OUTPUT),
    **dict.fromkeys(
        (
            "skip_clone",
            "output_text_buffer_length",
            "routed_experts_prompt_start",
            "trace_decode_token_ids",
            "prompt_logprob_start",
        ),
        _INNER,
    ),
    **dict.fromkeys(("max_new_tokens", "max_completion_tokens"), _MAX_TOKENS),
    "do_sample": "temperature decides: 0 is greedy; leave it out and set temperature",
    "spaces_between_special_tokens": "special tokens stand in the text as the tokenizer decodes "
    "them; leave it out, or use skip_special_tokens",
    "watermarking": "text is not watermarked; leave it out",
    "skip_reading_prefix_cache": "the prefix cache is switched for all requests by the option "
    "enable_prefix_caching; leave it out",
    "thinking_token_budget": "reasoning is not counted apart; leave it out and use max_tokens",
    "repetition_detection": "repetition does not end a request; leave it out and use repetition_penalty",
}
"""Name -> why it is not served, and what to do."""
