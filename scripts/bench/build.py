"""Speed of the builder on top of vLLM: its tokens/s against bare `LLM.generate`.

Both use one engine in one process, the same prompts, sampling settings and number of responses, in
turns. The builder is timed from its first submission to its last commit, verification and writing
included; bare `LLM.generate` gets all prompts at once. Also prints verdicts/s of the verifier alone
and the pool's size per token.

    scripts/bench_build [CONFIG] [--groups 512] [--repetitions 3] [--json FILE]
        [--section.key value ...]

The default config is the quickstart's; two minutes on two CPU cores. There the verifier's processes
take the cores from the engine, and the built-in model is faster than any verifier: a model of real
size (`--model.name_or_path`) on a machine with a GPU shows what a build loses.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import result

from offline_rlvr import generation, verifier
from offline_rlvr.config import load_config
from offline_rlvr.errors import QualityGateError
from offline_rlvr.generation.vllm import VLLMGenerator
from offline_rlvr.pool import Pool
from offline_rlvr.pool.build import build_pool, sampling_of
from offline_rlvr.pool.build.fill import generator_of

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


class Shared:
    """The one engine, lent to each build: not closed by it, and timed from its first submission."""

    def __init__(self, generator: VLLMGenerator):
        self.generator = generator
        self.sampling = generator.sampling
        self.first_submission: float | None = None

    def submit(self, prompts: Any, seeds: Any) -> generation.Pending:
        self.first_submission = self.first_submission or time.perf_counter()
        return self.generator.submit(prompts, seeds)

    def close(self) -> None:
        pass


def build(config: Any, path: Path, shared: Shared) -> tuple[Pool, float]:
    """A pool of all groups of the budget, and the seconds it took."""
    shared.first_submission = None
    with contextlib.suppress(QualityGateError):  # more mixed groups are asked for than there are
        build_pool(config, path)
    stop = time.perf_counter()
    assert shared.first_submission is not None
    return Pool.open(path), stop - shared.first_submission


def tokens_of(pool: Pool) -> int:
    return sum(
        len(ids) for group in pool.read(range(len(pool))) for ids in group.response_token_ids
    )


def bare(pool: Pool, llm: Any, params: Any) -> float:
    """Tokens/s of `LLM.generate` on the prompts of a pool."""
    groups = pool.read(range(len(pool)))
    prompts = [{"prompt_token_ids": group.prompt_token_ids.tolist()} for group in groups]
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    return sum(len(o.token_ids) for output in outputs for o in output.outputs) / seconds


def verdicts_per_second(config: Any, pool: Pool) -> float:
    pairs = [(group.answer, text) for group in pool.read(range(len(pool))) for text in group.texts]
    with config.build("verifier", verifier.load) as judge:
        judge.score(pairs[:64])
        start = time.perf_counter()
        judge.score(pairs)
        return len(pairs) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("config", nargs="?", type=Path, default=QUICKSTART)
    parser.add_argument("--groups", type=int, default=512)
    parser.add_argument("--repetitions", type=int, default=3)
    result.add_option(parser)
    arguments, rest = parser.parse_known_args()
    overrides = [
        (key.removeprefix("--"), value) for key, value in zip(rest[::2], rest[1::2], strict=True)
    ]
    config = load_config(
        arguments.config,
        [
            ("generation.name", "vllm"),
            ("pool.mixed_groups", "1000000"),
            ("pool.max_sampled_groups", str(arguments.groups)),
            *overrides,
        ],
    )
    shared = Shared(generator_of(config, sampling_of(config)))
    generation.load = lambda *_, **__: shared  # type: ignore[assignment]
    shared.submit([[0]], [[0]])()  # starts the engine
    llm = shared.generator.llm
    builder, alone = [], []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for repetition in range(arguments.repetitions):
                llm.reset_prefix_cache()
                pool, seconds = build(config, Path(folder) / str(repetition), shared)
                tokens = tokens_of(pool)
                builder.append(tokens / seconds)
                llm.reset_prefix_cache()
                alone.append(bare(pool, llm, shared.generator.params(config.pool.group_size)))
                print(
                    f"{repetition + 1}: {len(pool)} groups, {tokens} tokens; builder "
                    f"{builder[-1]:.0f} tokens/s, LLM.generate {alone[-1]:.0f} tokens/s",
                    flush=True,
                )
            size = sum(file.stat().st_size for file in pool.path.rglob("*") if file.is_file())
            ratio = statistics.median(builder) / statistics.median(alone)
            figures = {
                "builder_vs_generate": ratio,
                "builder_tokens_per_s": statistics.median(builder),
                "verdicts_per_s": verdicts_per_second(config, pool),
                "mb_per_million_tokens": size / tokens,
            }
    finally:
        shared.generator.close()
    rows = [[name, f"{value:.4g}"] for name, value in figures.items()]
    result.table(f"medians of {arguments.repetitions}", ["", "value"], rows)
    result.finish(figures, arguments.json)


if __name__ == "__main__":
    main()
