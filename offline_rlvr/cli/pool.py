"""`offline-rlvr pool ...`: build a pool and look into it."""

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from offline_rlvr.cli.options import Overrides, read_config

app = App(name="pool", help="Build a rollout pool and look into it.")


@app.command
def build(
    config: Path,
    *overrides: Overrides,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
) -> None:
    """Sample, verify and store groups until enough are mixed; typed again, it continues.

    Parameters
    ----------
    config
        YAML file of the job.
    output
        The pool's folder, e.g. pools/arith.
    """
    settings = read_config(config, overrides)
    from offline_rlvr.pool.build import build_pool
    from offline_rlvr.pool.show import format_stats
    from offline_rlvr.pool.summary import funnel

    pool = build_pool(settings, output)
    print(format_stats(funnel(pool)))
    paths = f"{shlex.quote(str(config))} --pool {shlex.quote(str(output))}"
    print(f"pool: {output}  (next: offline-rlvr train {paths} --run runs/NAME)")


@app.command
def stats(pool: Path) -> None:
    """Funnel, accuracy, lengths and verdicts of a pool.

    Parameters
    ----------
    pool
        The pool's folder.
    """
    from offline_rlvr.pool import Pool
    from offline_rlvr.pool.show import format_identity, format_stats
    from offline_rlvr.pool.summary import funnel

    opened = Pool.open(pool)
    print(format_identity(opened.identity))
    print(format_stats(funnel(opened)))


@app.command
def show(pool: Path, group: int | None = None, *, logprobs: bool = False) -> None:
    """One group with its responses, rewards and log-probs.

    Parameters
    ----------
    pool
        The pool's folder.
    group
        Group id; the first mixed group when not given.
    logprobs
        Print every token's log-prob, too.
    """
    from offline_rlvr.errors import DataError
    from offline_rlvr.pool import Pool, selection
    from offline_rlvr.pool.show import format_group

    opened = Pool.open(pool, check="size")
    if group is None:
        mixed = selection.mixed(opened)
        if not len(mixed):
            raise DataError(f"{pool} has no mixed group", hint="name a group id")
        group = int(mixed[0])
    print(format_group(opened.read([group])[0], logprobs=logprobs))
