"""Which models can be packed exactly, told by their config and class before any forward pass."""

from peft import PeftModel, PeftType
from torch import nn
from transformers import PreTrainedModel

from offline_rlvr.errors import IncompatibleError

#: Layer kinds whose attention depends on positions and a window alone.
PACKABLE_LAYERS = {"full_attention", "sliding_attention"}
#: Rotary embeddings whose frequencies depend on the longest sequence of the forward pass.
BATCH_DEPENDENT_ROPE = {"dynamic", "longrope"}
HINT = "use a plain attention model such as Qwen2/3, Llama, Mistral, SmolLM or a Gemma-3 text model"


def causal_lm(model: nn.Module) -> PreTrainedModel:
    """The transformers model itself, below LoRA if there is any."""
    return model.get_base_model() if isinstance(model, PeftModel) else model  # pyright: ignore


def packable(model: nn.Module) -> None:
    """Refuse a model that cannot be scored exactly in the shared-prefix layout.

    Raises:
        IncompatibleError: Naming the architecture and the reason: recurrent state (Mamba, linear
            attention, convolutions), attention outside transformers' interface, chunked or
            bidirectional attention, soft-capped scores, batch-dependent rotary embeddings, a
            wrapper other than LoRA, or an output head that is no plain linear layer.
    """
    if isinstance(model, PeftModel):
        kinds = {config.peft_type for config in model.peft_config.values()}
        if kinds != {PeftType.LORA} or len(model.peft_config) != 1:
            names = ", ".join(sorted(str(k) for k in kinds)) or "none"
            raise IncompatibleError(
                f"{len(model.peft_config)} adapters of kind {names}; allowed is one LoRA adapter"
            )
    base = causal_lm(model)
    reason = _reason(base)
    if reason:
        raise IncompatibleError(
            f"{type(base).__name__} ({_kind(base)}) cannot be packed exactly: {reason}", hint=HINT
        )


def _kind(model: nn.Module) -> str:
    return getattr(getattr(model, "config", None), "model_type", "not a transformers model")


def _reason(model: nn.Module) -> str | None:
    """Why the model cannot be packed, or None."""
    if not isinstance(model, PreTrainedModel):
        return "it is no transformers model"
    config = model.config
    if config.get_text_config() is not config:
        return "it is a multi-modal model"
    strange = set(getattr(config, "layer_types", None) or ()) - PACKABLE_LAYERS
    if model._is_stateful or strange:
        kinds = ", ".join(sorted(strange)) or "a recurrent state"
        return f"its layers carry {kinds} from token to token"
    if not model._supports_attention_backend:
        return "its attention does not go through transformers' AttentionInterface"
    if not getattr(config, "is_causal", True) or getattr(config, "use_bidirectional_attention", 0):
        return "its attention is not causal"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return "its attention scores are soft-capped"
    rope = _rope_types(getattr(config, "rope_parameters", None)) & BATCH_DEPENDENT_ROPE
    if rope:
        return (
            f"its rotary embedding ({', '.join(rope)}) depends on the longest sequence of the batch"
        )
    if type(model.get_output_embeddings()) is not nn.Linear:
        kind = type(model.get_output_embeddings())
        return f"its output head is a {kind.__module__}.{kind.__name__} (keep LoRA off the head)"
    return None


def _rope_types(parameters: dict | None) -> set[str]:
    if not isinstance(parameters, dict):
        return set()
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return {p["rope_type"] for p in [parameters, *nested] if isinstance(p.get("rope_type"), str)}


def expected_windows(model: PreTrainedModel) -> dict[int, int | None]:
    """Sliding window of each layer by the config: what it must pass to the attention function."""
    config = model.config
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return dict.fromkeys(range(config.num_hidden_layers), window)
    return {i: window if kind == "sliding_attention" else None for i, kind in enumerate(kinds)}
