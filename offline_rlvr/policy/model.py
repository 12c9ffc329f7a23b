"""The policy: a causal language model that scores whole groups in one packed forward pass."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed, Unsupported
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from offline_rlvr.batch import PoolBatch
from offline_rlvr.errors import ConfigError, IncompatibleError
from offline_rlvr.generation.pretrained import disable_dropout
from offline_rlvr.policy.attention import ATTENTION, FLEX_BLOCK, choose_backend
from offline_rlvr.policy.compatibility import (
    HINT,
    causal_lm,
    expected_windows,
    packable,
)
from offline_rlvr.policy.layout import Layout, plan_layout
from offline_rlvr.policy.logprobs import Head, selected_logprobs

if TYPE_CHECKING:
    from peft import PeftModel

#: Largest mean difference between packed and plain scoring of the probe, nats; the second for
#: weights or matrix products below float32.
PROBE_TOLERANCE, PROBE_TOLERANCE_LOW = 1e-4, 0.1


def eager():
    """A context in which a model of `Policy.compile_layers` runs as it was, e.g. to generate."""
    return torch.compiler.set_stance("force_eager")


class Scores(NamedTuple):
    """Log-probs of a batch under the policy.

    Attributes:
        logprobs: [G, K, T] float32, nats; 0 in the padding.
        entropy: [G, K, T] float32, nats, without gradient; 0 in the padding. None unless asked for.
    """

    logprobs: Tensor
    entropy: Tensor | None


class Policy(nn.Module):
    """A causal LM with shared-prefix packed scoring.

    Dropout is removed for good. Attention goes through `attention.attend`, which leaves generation
    as it was. At the start a tiny probe is scored packed and plainly; a model where the two differ
    is refused.

    Args:
        model: A causal LM of transformers, or one with a LoRA adapter.
        temperature: The pool's recorded sampling temperature; logits are divided by it.
        tile_tokens: Tokens whose logits exist at once; by default what 256 MiB hold.
        attention: Back-end (`dense`, `split`, `flex`); by default the fastest for the device.

    Raises:
        IncompatibleError: The model cannot be packed exactly; the message names the architecture.
        ConfigError: A temperature or tile that is not positive, or an unknown back-end.
    """

    def __init__(
        self,
        model: "PreTrainedModel | PeftModel",
        temperature: float = 1.0,
        tile_tokens: int | None = None,
        attention: str | None = None,
    ):
        super().__init__()
        if not 0 < temperature < float("inf"):
            raise ConfigError(f"temperature {temperature} is not a positive number")
        if tile_tokens is not None and tile_tokens < 1:
            raise ConfigError(f"tile_tokens {tile_tokens} is not a positive number")
        packable(model)
        disable_dropout(model)
        self.model = model
        self.temperature = temperature
        self.tile_tokens = tile_tokens
        self.attention = attention
        self.checkpointing = False
        choose_backend(self.device, 64, attention)  # refuse an unknown name now
        causal_lm(model).config._attn_implementation = ATTENTION
        self._probe()

    @property
    def causal_lm(self) -> PreTrainedModel:
        """The transformers model, below LoRA if there is any."""
        return causal_lm(self.model)

    @property
    def device(self) -> torch.device:
        """Where the embedding lies."""
        return self.causal_lm.get_input_embeddings().weight.device  # pyright: ignore

    @property
    def trained(self) -> int:
        """Weights that get a gradient."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    @property
    def head(self) -> Head:
        """Output head with temperature and soft-capping."""
        linear: nn.Linear = self.causal_lm.get_output_embeddings()  # pyright: ignore
        softcap = getattr(self.causal_lm.config, "final_logit_softcapping", None)
        return Head(linear.weight, linear.bias, self.temperature, softcap)

    def checkpoint_activations(self, on: bool) -> None:
        """Whether the layers' activations are made again in the backward pass: less memory."""
        if on == self.checkpointing:
            return
        if on:
            # Reentrant checkpoints drop the gradients of adapters below a frozen embedding.
            self.causal_lm.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            self.causal_lm.gradient_checkpointing_disable()
        self.checkpointing = on

    def compile_layers(self) -> None:
        """Fuse what lies between the matrix products (torch.compile): less time, less memory.

        Layers share one compiled graph for all lengths, with gradient and one without; their
        attention stays as it is. Takes a minute at the first scoring. Generate with the model in
        `eager()`.

        Raises:
            ConfigError: It cannot be compiled on this machine.
            IncompatibleError: Compiled, it computes something else.
        """
        for layer in self.causal_lm.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                layer.compile(dynamic=True)
        try:
            self._probe()
        except (BackendCompilerFailed, Unsupported) as error:
            reason = str(error).strip().split("\n")[0]
            raise ConfigError(
                f"the model cannot be compiled here: {reason}",
                hint="leave out model.compile, or install the C++ compiler that torch.compile "
                "needs on a CPU (g++)",
            ) from error

    def score(self, batch: PoolBatch, entropy: bool = False) -> Scores:
        """Log-probs of all response tokens; with gradient when grad is enabled.

        Args:
            batch: Groups, on any device.
            entropy: Also return the entropy of each token's distribution, without gradient.

        Returns:
            Scores on the policy's device.

        Raises:
            BatchError: Empty prompts or responses, or ids outside the vocabulary.
        """
        layout = self._layout(batch)
        hidden = self._hidden(layout)
        predictors = hidden.index_select(0, layout.predictors)
        values, entropies = selected_logprobs(
            predictors, self.head, layout.targets, entropy, self.tile_tokens
        )
        return Scores(
            _spread(values, layout), None if entropies is None else _spread(entropies, layout)
        )

    def forward(self, batch: PoolBatch, entropy: bool = False) -> Scores:
        """The same as `score`; lets wrappers (DDP) hook in."""
        return self.score(batch, entropy)

    def _layout(self, batch: PoolBatch) -> Layout:
        config = self.causal_lm.config
        head_dim = getattr(config, "head_dim", None)
        head_dim = head_dim or config.hidden_size // config.num_attention_heads
        backend = choose_backend(self.device, head_dim, self.attention)
        vocabulary = len(self.causal_lm.get_input_embeddings().weight)  # pyright: ignore
        multiple = FLEX_BLOCK if backend == "flex" else 1
        return plan_layout(batch, vocabulary, backend, multiple).to(self.device)

    def _hidden(self, layout: Layout) -> Tensor:
        """Last hidden states of the packed row, [N, H]."""
        # transformers hands a 4-D mask to the layers as it is. Ours is built in `attend`; should a
        # model use this one instead, its log-probs turn NaN and the probe refuses it.
        sentinel = torch.full((1, 1, 1, 1), float("nan"), device=self.device)
        output = self.causal_lm.base_model(
            input_ids=layout.tokens[None],
            position_ids=layout.positions[None],
            attention_mask=sentinel,
            use_cache=False,
            layout=layout,
        )
        return output.last_hidden_state[0]

    @torch.no_grad()
    def _probe(self) -> None:
        """Compare packed with plain scoring on two small groups."""
        batch = _probe_batch(int(self.head.weight.shape[0]), self.device)
        name = f"{type(self.causal_lm).__name__} ({self.causal_lm.config.model_type})"
        packed = self.score(batch).logprobs
        layout = self._layout(batch)
        self._hidden(layout)
        windows = expected_windows(self.causal_lm)
        if layout.windows != windows:
            raise IncompatibleError(
                f"{name} cannot be packed exactly: its layers attend over windows "
                f"{layout.windows}, its config says {windows}"
            )
        plain = torch.zeros_like(packed)
        for g, k in [(g, k) for g in range(packed.shape[0]) for k in range(packed.shape[1])]:
            plain[g, k] = self._plain(batch, g, k)
        difference = float((packed - plain).abs().mean())
        exact = self.head.weight.dtype == torch.float32
        exact = exact and torch.get_float32_matmul_precision() == "highest"
        if not difference <= (PROBE_TOLERANCE if exact else PROBE_TOLERANCE_LOW):
            raise IncompatibleError(
                f"{name} cannot be packed exactly: on a small probe, packed and plain log-probs "
                f"differ by {difference:.2g} nats per token",
                hint=HINT,
            )

    def _plain(self, batch: PoolBatch, g: int, k: int) -> Tensor:
        """[T] log-probs of one response by the model's own forward pass, for the probe."""
        p, n = int(batch.prompt_lengths[g]), int(batch.response_lengths[g, k])
        ids = torch.cat([batch.prompt_token_ids[g, :p], batch.response_token_ids[g, k, :n]])
        with eager():
            logits = self.causal_lm(input_ids=ids[None], use_cache=False).logits[0, p - 1 : -1]
        logprobs = (logits.float() / self.temperature).log_softmax(-1)
        values = logprobs.gather(1, ids[p:, None])[:, 0]
        return nn.functional.pad(values, (0, batch.response_token_ids.shape[-1] - n))


def _spread(values: Tensor, layout: Layout) -> Tensor:
    """[C] values of the response tokens -> [G, K, T], 0 in the padding."""
    g, k, _, t = layout.shape
    return values.new_zeros(g * k * t).index_copy(0, layout.response_slots, values).view(g, k, t)


def _probe_batch(vocabulary: int, device: torch.device) -> PoolBatch:
    """Two groups of two ragged responses, ids spread over the vocabulary."""
    ids = (torch.arange(2 * (4 + 2 * 5), device=device) * 7919 + 11) % vocabulary
    prompts, responses = ids[:8].view(2, 4), ids[8:].view(2, 2, 5)
    return PoolBatch(
        group_ids=torch.arange(2, device=device),
        prompt_token_ids=prompts,
        prompt_lengths=torch.tensor([4, 2], device=device),
        response_token_ids=responses,
        response_lengths=torch.tensor([[5, 3], [1, 4]], device=device),
        behavior_logprobs=torch.zeros(2, 2, 5, device=device),
        rewards=torch.zeros(2, 2, device=device),
    )
