r"""Make the built-in model: a tiny Qwen3 that answers arithmetic about half of the time.

    python scripts/make_builtin_model.py --out DIR [--steps 1300] [--seed 0]

It writes a Hugging Face folder (character tokenizer, chat template, float32 safetensors), trains
the model by plain supervision on the train split of `offline_rlvr.problems.arithmetic`, and prints
what it measured on the held-out split with the package's own generator. A student for
reinforcement learning must be unsure, so that most groups hold right and wrong answers: training
stops early, and some of the digits taught are slips.
"""

import argparse
import itertools
import json
import random
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from offline_rlvr.generation.hf import HFGenerator
from offline_rlvr.generation.sampling import Sampling, seed_for
from offline_rlvr.problems import arithmetic
from offline_rlvr.records import Problem

DEFAULT_OUT = Path(__file__).parents[1] / "offline_rlvr" / "builtin"
SPECIAL = ("<|pad|>", "<|bos|>", "<|eos|>", "<|unk|>", "<|system|>", "<|user|>", "<|assistant|>")
PAD, BOS, EOS, UNK = range(4)
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))

#: A role token opens each turn; an assistant turn ends with EOS, so a finished response is a
#: finished turn.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

DRAWING = 2000
#: Share of digits taught at random. A student that learned only right answers is wrong where it
#: knows no better, which offline updates cannot mend; slips are what they can unlearn.
SLIP = 0.12
BATCH_SIZE = 128
MATRIX_LEARNING_RATE = 0.02
LEARNING_RATE = 3e-3
WARMUP_STEPS = 50


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable ASCII character and newline; all else is one unknown token."""
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[UNK]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")  # type: ignore[assignment]
    tokenizer.decoder = decoders.Fuse()  # type: ignore[assignment]
    tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single=f"{SPECIAL[BOS]} $A", special_tokens=[(SPECIAL[BOS], BOS)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[PAD],
        bos_token=SPECIAL[BOS],
        eos_token=SPECIAL[EOS],
        unk_token=SPECIAL[UNK],
        additional_special_tokens=list(SPECIAL[4:]),
        clean_up_tokenization_spaces=False,
        model_max_length=512,
        padding_side="left",
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(vocabulary: int, seed: int) -> Qwen3ForCausalLM:
    """A random Qwen3 of about 0.8 million parameters."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, do_sample=True
    )
    return model


def encode(tokenizer: PreTrainedTokenizerFast, problem: Problem) -> tuple[list[int], list[int]]:
    """Prompt ids (chat template, no system message) and target ids (boxed answer and EOS)."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": problem.question}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    target = tokenizer.encode(f"\\boxed{{{problem.answer}}}", add_special_tokens=False)
    return list(prompt), [*target, EOS]  # type: ignore[arg-type]


def slip(answer: str, rng: random.Random) -> str:
    """The answer as a hasty student writes it: now and then a digit is a random one."""
    return "".join(
        rng.choice("0123456789") if c.isdigit() and rng.random() < SLIP else c for c in answer
    )


def collate(pairs: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids and labels [B, T]; labels are -100 on the prompt and the padding."""
    width = max(len(prompt) + len(target) for prompt, target in pairs)
    ids = torch.full((len(pairs), width), PAD)
    labels = torch.full((len(pairs), width), -100)
    for row, (prompt, target) in enumerate(pairs):
        end = len(prompt) + len(target)
        ids[row, :end] = torch.tensor(prompt + target)
        labels[row, len(prompt) : end] = torch.tensor(target)
    return ids, labels


def stream(seed: int) -> Iterator[Problem]:
    """Train-split problems for ever, slips included; a drawing holds all kinds about equally."""
    rng = random.Random(seed)
    for drawing in itertools.count():
        for problem in arithmetic.load(DRAWING, seed=seed + drawing, split="train"):
            yield replace(problem, answer=slip(problem.answer, rng))


def schedule(step: int, steps: int) -> float:
    """Linear warm-up, then linear decay to nothing."""
    return min((step + 1) / WARMUP_STEPS, (steps - step) / steps)


def train(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, seed: int
) -> None:
    """Cross-entropy on fresh train-split problems, warm-up and linear decay."""
    problems = stream(seed)
    matrices = [p for name, p in model.named_parameters() if "layers" in name and p.ndim == 2]
    others = [p for name, p in model.named_parameters() if "layers" not in name or p.ndim != 2]
    optimizers = [
        torch.optim.Muon(matrices, lr=MATRIX_LEARNING_RATE, weight_decay=0.01),
        torch.optim.AdamW(others, lr=LEARNING_RATE, weight_decay=0.0),
    ]
    schedulers = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, partial(schedule, steps=steps))
        for optimizer in optimizers
    ]
    model.train()
    started = time.monotonic()
    for step in range(steps):
        ids, labels = collate(
            [encode(tokenizer, problem) for problem in itertools.islice(problems, BATCH_SIZE)]
        )
        # Padding is on the right, so causal attention alone keeps it out of sight.
        logits = model(input_ids=ids, use_cache=False).logits
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        for part in (*optimizers, *schedulers):
            part.step()
        if step % 50 == 0 or step == steps - 1:
            print(
                f"step {step:4d}  loss {loss:.4f}  {time.monotonic() - started:.0f} s", flush=True
            )
    model.eval()


def boxed(text: str) -> str | None:
    """What the last `\\boxed{...}` of a response holds."""
    return next(iter(re.findall(r"\\boxed\{([^{}]*)\}", text)[-1:]), None)


def measure(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int
) -> dict[str, float]:
    """mean@32, pass@32 and the share of mixed groups of 8, held out, at temperature 1."""
    problems = arithmetic.load(count, seed=1, split="heldout")
    prompts = [encode(tokenizer, problem)[0] for problem in problems]
    seeds = [[seed_for(0, i, k) for k in range(32)] for i in range(count)]
    sampling = Sampling(max_new_tokens=24, stop_token_ids=(EOS,))
    groups = HFGenerator(model, tokenizer, sampling, batch_size=512).generate(prompts, seeds)
    right = [
        [boxed(response.text) == problem.answer for response in group]
        for problem, group in zip(problems, groups, strict=True)
    ]
    eights = [sum(row[i : i + 8]) for row in right for i in range(0, 32, 8)]
    lengths = [len(response.token_ids) for group in groups for response in group]
    finished = [response.finish_reason == "stop" for group in groups for response in group]
    return {
        "mean@32": statistics.mean(map(statistics.mean, right)),
        "pass@32": statistics.mean(map(any, right)),
        "mixed groups of 8": statistics.mean(0 < n < 8 for n in eights),
        "all right": statistics.mean(n == 8 for n in eights),
        "all wrong": statistics.mean(n == 0 for n in eights),
        "finished": statistics.mean(finished),
        "mean length": statistics.mean(lengths),
        "longest": max(lengths),
    }


def main() -> None:
    """Make, train, save, measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--steps", type=int, default=1300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--measure", type=int, default=400, help="held-out problems; 0: none")
    args = parser.parse_args()
    tokenizer = make_tokenizer()
    model = make_model(len(tokenizer), args.seed)
    train(model, tokenizer, args.steps, args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    if args.measure:
        print(json.dumps(measure(model, tokenizer, args.measure), indent=1))


if __name__ == "__main__":
    main()
