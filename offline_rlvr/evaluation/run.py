"""Evaluate a policy on held-out problems with the pool's own prompt, sampler and verifier."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from offline_rlvr import problems as problem_sources
from offline_rlvr.cache import Cache, cache_folder
from offline_rlvr.config import Config
from offline_rlvr.errors import ConfigError
from offline_rlvr.evaluation.answers import Sample, answered_by, engine_of
from offline_rlvr.evaluation.records import Evaluation, Sampled
from offline_rlvr.generation.pretrained import forward_facts
from offline_rlvr.generation.prompt import PromptFormat
from offline_rlvr.generation.sampling import Sampling, seed_for
from offline_rlvr.records import Problem
from offline_rlvr.verifier import Verifier


class Evaluator:
    """Answers every held-out problem k times and scores the answers.

    The same seeds serve every evaluation, so two policies are compared on common random numbers.

    Args:
        name: Name of the problem set, for the result.
        problems: Held-out problems.
        prompts: Their token ids, one list per problem.
        sampling: The pool's sampling settings.
        verifier: An open verifier.
        k: Responses per problem.
        seed: Sampling seed.
        engine: What samples the answers, for the result.
        base: What the answers of the untouched base depend on beside the other arguments, as JSON
            values: they are kept for other runs and taken from them. None: always sampled.
    """

    def __init__(
        self,
        name: str,
        problems: Sequence[Problem],
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        verifier: Verifier,
        *,
        k: int,
        seed: int,
        engine: str,
        base: Mapping[str, Any] | None = None,
    ):
        self.name = name
        self.problems = problems
        self.prompts = prompts
        self.sampling = sampling
        self.verifier = verifier
        self.seeds = [
            [seed_for(seed, row, index) for index in range(k)] for row in range(len(problems))
        ]
        self.engine = engine
        self.base = base

    @classmethod
    def from_config(
        cls,
        config: Config,
        tokenizer: PreTrainedTokenizerBase,
        sampling: Sampling,
        verifier: Verifier,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> list["Evaluator"]:
        """One evaluator for each set of held-out problems that a config names.

        `fingerprint` is that of the untouched base; None: its answers are sampled in every run.
        """
        if config.evaluation.problems is None:
            return []
        sets = config.build("evaluation.problems", problem_sources.load_sets)
        base = fingerprint and {
            "model": fingerprint,
            "answers": answered_by(config),
            **forward_facts(config.model.device),
        }
        evaluators = []
        for name, given in sets.items():
            problems, _ = problem_sources.dedupe(given)
            evaluators.append(
                cls(
                    name,
                    problems,
                    _prompts(config, tokenizer, problems),
                    sampling,
                    verifier,
                    k=config.evaluation.k,
                    seed=config.evaluation.seed,
                    engine=engine_of(config),
                    base=base,
                )
            )
        return evaluators

    def evaluate(self, sample: Sample, update: int) -> Evaluation:
        """Sample, verify and tabulate.

        Args:
            sample: The policy.
            update: Updates it holds; 0 is the untouched base.
        """
        responses = self._of_base(sample) if update == 0 else self._sampled(sample)
        pairs = [
            (problem.answer, response.text)
            for problem, row in zip(self.problems, responses, strict=True)
            for response in row
        ]
        verdicts = self.verifier.score(pairs)
        k = len(self.seeds[0])
        rows = [verdicts[start : start + k] for start in range(0, len(verdicts), k)]
        return Evaluation.of(self.name, update, self.problems, responses, rows, engine=self.engine)

    def _of_base(self, sample: Sample) -> list[list[Sampled]]:
        """What the base answers, from an earlier run where there was one with equal settings."""
        if self.base is None:
            return self._sampled(sample)
        facts = {
            **self.base,
            "prompts": self.prompts,
            "seeds": self.seeds,
            "sampling": self.sampling.as_dict(),
        }
        cache = Cache(cache_folder("base-answers"), f"the base model's answers to {self.name}")
        kept = cache.get(facts)
        if kept is not None:
            return [[Sampled(*answer) for answer in row] for row in json.loads(kept)]
        answers = self._sampled(sample)
        cache.keep(facts, json.dumps(answers).encode())
        return answers

    def _sampled(self, sample: Sample) -> list[list[Sampled]]:
        return [
            [Sampled(r.text, len(r.token_ids), r.finish_reason) for r in row]
            for row in sample(self.prompts, self.seeds)
        ]


def _prompts(
    config: Config, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem]
) -> list[list[int]]:
    """Token ids of each problem's prompt; none may be too long for the pool's limit."""
    prompt = PromptFormat(
        config.prompt.system, config.prompt.user_suffix, config.prompt.chat_template
    )
    prompts = [prompt.render(tokenizer, problem.question) for problem in problems]
    longest = max(map(len, prompts))
    if longest > config.prompt.max_tokens:
        raise ConfigError(
            f"a held-out prompt has {longest} tokens; prompt.max_tokens is "
            f"{config.prompt.max_tokens}",
            hint="raise prompt.max_tokens: dropping held-out problems would change the measure",
        )
    return prompts
