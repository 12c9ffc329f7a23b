"""The pool's card: a README.md that people read and whose front matter `datasets` reads."""

import json
from collections.abc import Mapping
from typing import Any

from offline_rlvr.pool.reader import Pool
from offline_rlvr.pool.show import format_stats, printable

CARD_NAME = "README.md"


def render(pool: Pool, stats: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> str:
    """The card as Markdown.

    Args:
        pool: The pool.
        stats: Its funnel.
        extra: `title`, `description` and `notes` (a list: truncated sampling belongs there); every
            other entry is shown in the table of settings.
    """
    extra = dict(extra or {})
    title = _inline(str(extra.pop("title", pool.path.resolve().name)))
    description = str(
        extra.pop("description", "A rollout pool for offline RL with verifiable rewards.")
    )
    notes = [f"- {_inline(str(note))}" for note in extra.pop("notes", [])]
    settings = _flatten({**pool.identity, **extra})
    return "\n".join(
        [
            *_front_matter(pool),
            f"# {title}",
            "",
            _inline(description),
            "",
            *([*notes, ""] if notes else []),
            "Every sampled response is here, right or wrong. `samples` has one row per problem: K",
            "responses with token ids and log-probs (nats) under the distribution they were drawn",
            "from. `grades-*` has the verdicts, joined by `group_id`.",
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
            *[f"| {_cell(key)} | {_cell(value)} |" for key, value in settings],
            f"| verifier | {_cell(pool.verifier_id or 'none')} |",
            f"| pool hash at commit {pool.commit} | {pool.hash} |",
            "",
        ]
    )


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


def _flatten(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        return [
            leaf
            for key, inner in value.items()
            for leaf in _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
        ]
    return [(prefix, value if isinstance(value, str) else json.dumps(value, default=str))]


def _inline(text: str) -> str:
    """Text that is neither HTML nor a control sequence."""
    return printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cell(text: str) -> str:
    return _inline(text).replace("|", "\\|").replace("\n", " ")
