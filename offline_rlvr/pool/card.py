"""The pool's card: a README.md that people read and whose front matter `datasets` reads."""

import json
from collections.abc import Mapping
from typing import Any

from offline_rlvr.dotted import leaves
from offline_rlvr.generation.sampling import LOGPROB_MODE
from offline_rlvr.pool.reader import Pool
from offline_rlvr.pool.show import format_stats, printable

CARD_NAME = "README.md"


def render(pool: Pool, stats: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> str:
    """The card as Markdown.

    Args:
        pool: The pool.
        stats: Its funnel.
        extra: `title`, `description` and `notes` (a list); every other entry is shown in the table
            of settings.
    """
    extra = dict(extra or {})
    title = inline(str(extra.pop("title", pool.path.resolve().name)))
    description = str(
        extra.pop("description", "A rollout pool for offline RL with verifiable rewards.")
    )
    sampling = pool.identity.get("sampling")
    sampling = sampling if isinstance(sampling, Mapping) else {}
    notes = [*_notes(sampling), *extra.pop("notes", [])]
    notes = [f"- {inline(str(note))}" for note in notes]
    settings = leaves({**pool.identity, **extra})
    return "\n".join(
        [
            *_front_matter(pool),
            f"# {title}",
            "",
            inline(description),
            "",
            *([*notes, ""] if notes else []),
            "Every sampled response is here, right or wrong. `samples` has one row per problem: K",
            f"responses with token ids and log-probs (nats) {_origin(sampling)}",
            "`grades-*` has the verdicts, joined by `group_id`.",
            "",
            "## Funnel",
            "",
            "```text",
            format_stats(stats).replace("```", "'''"),
            "```",
            "",
            "## Settings",
            "",
            "| setting | value |",
            "|---|---|",
            *[f"| {cell(key)} | {cell(_text(value))} |" for key, value in settings],
            f"| verifier | {cell(pool.verifier_id or 'none')} |",
            f"| pool hash at commit {pool.commit} | {pool.hash} |",
            "",
        ]
    )


def _origin(sampling: Mapping[str, Any]) -> str:
    if sampling.get("logprobs", LOGPROB_MODE) == LOGPROB_MODE:
        return "under the distribution they were drawn from."
    return "that the model gave them afterwards."


def _notes(sampling: Mapping[str, Any]) -> list[str]:
    """What a reader must know before using the log-probs."""
    found = []
    off = {"top_p": 1, "top_k": 0, "min_p": 0}
    cuts = [
        f"{name} {sampling[name]}" for name in off if sampling.get(name, off[name]) != off[name]
    ]
    if cuts:
        found.append(
            f"Sampling was truncated ({', '.join(cuts)}): log-probs are those of the renormalized "
            "distribution, and ratios to them are biased."
        )
    semantics = sampling.get("logprobs", LOGPROB_MODE)
    if semantics != LOGPROB_MODE:
        found.append(
            f"Log-probs are {semantics}: a model scored the finished responses. Those of the "
            "sampler were not recorded and may differ."
        )
    return found


def _front_matter(pool: Pool) -> list[str]:
    configs = [("samples", "samples/part-*.parquet")]
    configs += [(f"grades-{v}", f"grades/{v}/part-*.parquet") for v in pool.verifier_ids]
    lines = ["---", "tags:", "- offline-rlvr"]
    if len(pool):
        lines.append("configs:")
    for number, (name, pattern) in enumerate(configs if len(pool) else []):
        # JSON strings are YAML strings, whatever characters a name holds.
        lines += [f"- config_name: {json.dumps(name)}", f"  data_files: {json.dumps(pattern)}"]
        lines += ["  default: true"] if number == 0 else []
    return [*lines, "---", ""]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def inline(text: str) -> str:
    """Text that is neither HTML nor a control sequence."""
    return printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def cell(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return inline(text).replace("|", "\\|").replace("\n", " ")
