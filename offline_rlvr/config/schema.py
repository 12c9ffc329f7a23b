"""Every key a config file may have, with its default, unit and reason. Unknown keys are refused.

One file describes the whole job: what is sampled (`model prompt problems pool sampling generation
verifier`), how it is trained (`selection objective reference old train`), and how it is measured
(`evaluation`).
"""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from offline_rlvr.config.condition import Condition
from offline_rlvr.config.section import PositiveInt, Section

Momentum = Annotated[float, Field(ge=0, lt=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class Named(Section):
    """A part chosen by `name` (the module's name), whose own settings are the other keys here."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str

    @property
    def params(self) -> dict[str, Any]:
        """The settings of the named part."""
        return dict(self.model_extra or {})


class Lora(Section):
    """A low-rank adapter instead of full fine-tuning; its dropout is always 0 (exact log-probs)."""

    rank: PositiveInt = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    target_modules: str | list[str] = "all-linear"


class Model(Section):
    """The frozen policy that samples the pool, and from which training starts."""

    name_or_path: str = Field(
        default="builtin", description="`builtin`, a local folder, or a hub id"
    )
    revision: str | None = Field(default=None, description="hub commit; pin it")
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="of sampling, and of the frozen weights under LoRA; trained weights are "
        "float32 (see train.precision)",
    )
    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N")
    lora: Lora | None = Field(default=None, description="null trains every weight")
    gradient_checkpointing: bool = False
    compile: bool = Field(
        default=False,
        description="torch.compile the layers for training: each update takes less time and "
        "memory after a minute at the start; not with train.strategy fsdp2",
    )

    @property
    def learner_dtype(self) -> str:
        """Weights that are trained are float32: in bfloat16 a step of 1e-6 is lost."""
        return self.dtype if self.lora else "float32"


class Prompt(Section):
    """How a question becomes token ids; the same for sampling, training and evaluation."""

    system: str | None = None
    user_suffix: str = ""
    chat_template: bool = True
    max_tokens: PositiveInt = Field(
        default=1024, description="longer prompts are dropped and counted"
    )


class Pool(Section):
    """How many groups are sampled, and when to stop."""

    group_size: Annotated[int, Field(ge=2)] = Field(
        default=8, description="responses per problem (K)"
    )
    mixed_groups: PositiveInt = Field(
        default=1920, description="stop when so many groups with right and wrong answers are stored"
    )
    max_sampled_groups: PositiveInt | None = Field(
        default=None, description="budget; null: every problem may be drawn once"
    )
    max_hours: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="budget; null: none"
    )
    chunk_groups: PositiveInt = Field(
        default=64, description="groups per commit; a crash loses less"
    )
    max_unscored: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.01, description="share of unscored responses above which the build stops"
    )
    probe_groups: Annotated[int, Field(ge=0)] = Field(
        default=32, description="unfiltered groups never trained on; drift is also measured there"
    )
    seed: int = Field(default=0, description="draw order and sampling")


class Selection(Section):
    """Which of the pool's mixed groups are trained on; null or false takes nothing away."""

    min_correct: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="correct responses of a group (of K), at least"
    )
    max_correct: Annotated[int, Field(ge=0)] | None = Field(default=None, description="at most")
    max_prompt_tokens: PositiveInt | None = None
    max_response_tokens: PositiveInt | None = Field(
        default=None, description="of the longest response in the group"
    )
    drop_truncated: bool = Field(
        default=False, description="leave out groups with a response cut at the length limit"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        least, most = self.min_correct, self.max_correct
        if least is not None and most is not None and least > most:
            raise ValueError("min_correct to be at most max_correct")
        return self


class Sampling(Section):
    """What responses are drawn from; what is not set is off, whatever the model's file says."""

    max_new_tokens: PositiveInt = 1024
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: Fraction = 1.0
    top_k: Annotated[int, Field(ge=0)] = Field(default=0, description="0: off")
    min_p: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.0, description="0: off")
    allow_truncated_sampling: bool = Field(
        default=False,
        description="top_p/top_k/min_p bias the ratio to the behavior policy: say you know",
    )


class Generation(Named):
    """The sampling engine."""

    name: str = "hf"


class Verifier(Named):
    """The judge of answers."""

    name: str = "math_verify"


class Objective(Named):
    """The loss; its other keys are its hyper-parameters (`offline-rlvr objectives`)."""

    name: str = "ggpo"


class Anchor(Section):
    """When the learner's own log-probs are stored as an anchor."""

    refresh_every: PositiveInt | None = Field(
        default=None,
        description="updates, which each refresh scores ahead; null: never by itself, and a "
        "refresh scores all updates that are left",
    )
    refresh_when: Condition | None = Field(
        default=None,
        description="refresh earlier, e.g. {metric: reference/k3, above: 0.05, for: 10}; `for` is "
        "counted from the last refresh",
    )


class Train(Section):
    """The optimizer and the size of an update."""

    groups_per_update: PositiveInt = 32
    max_updates: PositiveInt | None = Field(
        default=None,
        description="null: the whole pool, once; may be raised later where an anchor window ends",
    )
    drop_last: bool = Field(default=False, description="leave out a last update that is not full")
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    warmup_updates: Annotated[int, Field(ge=0)] = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    betas: tuple[Momentum, Momentum] = Field(default=(0.9, 0.999), strict=False)
    grad_clip: Annotated[float, Field(gt=0)] | None = 1.0
    micro_batch_tokens: PositiveInt | None = Field(
        default=None,
        description="budget of tokens per forward; a micro-batch is whole groups; null: chosen "
        "from the free memory",
    )
    devices: PositiveInt | Literal["auto"] = Field(
        default=1, description="processes, one per GPU (or CPU share); auto: every visible GPU"
    )
    strategy: Literal["ddp", "fsdp2"] = Field(
        default="ddp",
        description="of several devices: each holds all weights, or a part of each (fsdp2)",
    )
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    seed: int = Field(default=0, description="order of the groups")
    checkpoint_every: PositiveInt = Field(default=20, description="updates between checkpoints")
    keep_checkpoints: PositiveInt = 2
    keep_best: bool = Field(
        default=False,
        description="never remove the checkpoint with the best held-out accuracy (mean@k over all "
        "problems; see evaluation.every)",
    )
    stop_when: Condition | None = Field(
        default=None,
        description="end the training early, e.g. {metric: weights/ess, below: 1e-3, for: 20}",
    )
    log_entropy_every: PositiveInt = Field(
        default=1, description="updates between entropy measurements"
    )
    probe_every: PositiveInt = Field(default=5, description="updates between probe measurements")
    max_noise_floor: Annotated[float, Field(gt=0)] = Field(
        default=0.1,
        description="refuse to train when stored and re-scored log-probs of the untouched policy "
        "differ by more nats per token than this: wrong model, tokenizer, template or temperature",
    )


class Evaluation(Section):
    """Held-out problems, answered before, during and after training, sampled like the pool."""

    problems: "Named | None" = Field(default=None, description="null: no evaluation")
    k: PositiveInt = Field(default=32, description="responses per problem")
    every: PositiveInt | None = Field(
        default=None, description="updates; null: before and after only"
    )
    seed: int = 1234
    generation: Generation | None = Field(
        default=None,
        description="engine that loads each checkpoint and answers, e.g. {name: vllm, "
        "gpu_memory_utilization: 0.3} beside the learner; null: the learner itself, by "
        "transformers, which takes long where answers are",
    )


class Config(Section):
    """A whole job."""

    model: Model = Model()
    prompt: Prompt = Prompt()
    problems: Named = Field(
        default=Named(name="arithmetic"), description="source of the pool's problems"
    )
    pool: Pool = Pool()
    sampling: Sampling = Sampling()
    generation: Generation = Generation()
    verifier: Verifier = Verifier()
    selection: Selection = Selection()
    objective: Objective = Objective()
    reference: Anchor = Anchor(refresh_every=160)
    old: Anchor = Anchor(refresh_every=8)
    train: Train = Train()
    evaluation: Evaluation = Evaluation()
    logger: Named | None = Field(
        default=None,
        description="curves beside metrics.jsonl: tensorboard, wandb, trackio, mlflow or csv; the "
        "other keys are that Lightning logger's, e.g. {name: wandb, offline: true}",
    )
