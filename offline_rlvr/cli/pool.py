"""`offline-rlvr pool ...`: build a pool and look into it."""

import shlex
from json import dumps
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from offline_rlvr.amounts import duration
from offline_rlvr.cli import upkeep
from offline_rlvr.cli.options import Overrides, read_config, share_of
from offline_rlvr.cli.pool_import import import_pool

app = App(name="pool", help="Build a rollout pool and look into it.")


@app.command
def build(
    config: Path,
    *overrides: Overrides,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    part: Annotated[str, Parameter(name="--slice")] = "1/1",
    pilot: int | None = None,
    dry_run: bool = False,
    max_unscored: str | None = None,
) -> None:
    """Sample, verify and store groups until enough are mixed; typed again, it continues.

    Parameters
    ----------
    config
        YAML file of the job.
    output
        The pool's folder, e.g. pools/arith.
    part
        Draw one of N disjoint slices of the problems, e.g. 3/8, with an eighth of the goals; give
        each slice its own folder and join them with `pool merge`.
    pilot
        Sample this many groups only, then tell mixed rate, tokens/s, hours and disk of the whole;
        without it, the same command goes on from there.
    dry_run
        Read the problems and check the settings; load no model, sample nothing.
    max_unscored
        Stop above this share of unscored responses, e.g. 1% (short for --pool.max_unscored).
    """
    extra = [] if max_unscored is None else ["--pool.max_unscored", share_of(max_unscored)]
    settings = read_config(config, [*overrides, *extra])
    from offline_rlvr.pool import build as building
    from offline_rlvr.pool.show import format_stats
    from offline_rlvr.pool.summary import funnel

    which = building.Slice.parse(part)
    if dry_run:
        print("\n".join(building.dry_run(settings, output, which)))
        return
    if pilot is not None:
        print("\n".join(building.pilot(settings, output, pilot, which)))
        return
    pool = building.build_pool(settings, output, which)
    print(format_stats(funnel(pool)))
    paths = f"{shlex.quote(str(config))} --pool {shlex.quote(str(output))}"
    following = f"train {paths} --run runs/NAME"
    if which.count > 1:
        following = f"pool merge POOL {shlex.quote(str(output))} and the other slices"
    print(f"pool: {output}  (next: offline-rlvr {following})")


@app.command
def stats(
    pool: Path,
    *,
    verifier: str | None = None,
    json: bool = False,
    html: Path | None = None,
) -> None:
    """Funnel, accuracy, lengths and verdicts of a pool.

    Parameters
    ----------
    pool
        The pool's folder.
    verifier
        Whose grades to use; by default those that training uses.
    json
        Print the numbers as JSON, for scripts.
    html
        Also write them as one self-contained page.
    """
    from offline_rlvr.pool import Pool
    from offline_rlvr.pool.show import format_identity, format_stats
    from offline_rlvr.pool.summary import funnel
    from offline_rlvr.pool.timing import read_timing

    opened = Pool.open(pool, verifier)
    numbers = funnel(opened)
    if json:
        print(dumps(numbers, indent=1))
    else:
        print(format_identity(opened.identity))
        print(format_stats(numbers))
        timing = read_timing([pool])
        if timing.seconds:
            print(
                f"sampled in      {duration(timing.seconds)}, "
                f"{timing.tokens / timing.seconds:,.0f} tokens/s (cost per run: `run cost`)"
            )
    if html is not None:
        from offline_rlvr.report import render_pool

        render_pool(opened, numbers, html)
        if not json:
            print(f"\npage: {html}")


@app.command
def show(
    pool: Path,
    group: int | None = None,
    *,
    verifier: str | None = None,
    mixed: bool = False,
    right: bool = False,
    wrong: bool = False,
    limit: int = 1,
    logprobs: bool = False,
) -> None:
    """Groups with their responses, rewards and log-probs.

    Parameters
    ----------
    pool
        The pool's folder.
    group
        Group id; the first matching group when not given, a mixed one if nothing is asked for.
    verifier
        Whose grades to use; by default those that training uses.
    mixed
        Only groups whose rewards differ.
    right
        Only responses that are right, and groups that have some.
    wrong
        Only responses that were scored and are not right, and groups that have some.
    limit
        Show this many groups.
    logprobs
        Print every token's log-prob, too.
    """
    from offline_rlvr.pool.show import format_group, matching

    only_mixed = mixed or not (right or wrong or group is not None)
    filters = {"mixed": only_mixed, "right": right, "wrong": wrong}
    found = matching(pool, group, **filters, limit=limit, verifier_id=verifier)
    texts = [format_group(g, responses=shown, logprobs=logprobs) for g, shown in found.groups]
    print("\n\n\n".join(texts))
    if group is None:
        print(f"\n{len(texts)} of {found.matches} matching groups (--limit {limit})")


@app.command
def grade(
    pool: Path,
    *settings: Annotated[
        str,
        Parameter(
            name="--verifier.KEY",
            allow_leading_hyphen=True,
            help="The verifier, e.g. --verifier.name math_verify --verifier.fallback last_number",
        ),
    ],
    dry_run: int | None = None,
) -> None:
    """Grade the stored responses with another verifier and show what changes; needs no model.

    Old grades are kept. Training uses those that were completed last; an interrupted grading
    changes nothing and continues when typed again. Named again, an earlier verifier scores nothing
    and is the one in use again.

    Parameters
    ----------
    pool
        The pool's folder.
    dry_run
        Only show the changes on this many first groups; store nothing.
    """
    from offline_rlvr import verifier
    from offline_rlvr.cli.options import read_part
    from offline_rlvr.pool import Pool
    from offline_rlvr.pool import grade as grading
    from offline_rlvr.pool.show_change import format_change, format_examples

    name, params = read_part("verifier", settings)
    before = Pool.open(pool, check="size")
    with verifier.load(name, **params) as judge:
        if dry_run is None:
            change = grading.grade(pool, judge)
        else:
            change = grading.preview(pool, judge, dry_run)
    after = Pool.open(pool, check="size")
    print(format_change(change))
    print(format_examples(after, change))
    used = "was and stays" if before.verifier_id == after.verifier_id else "is now"
    print(f"what training uses {used} {after.verifier_id}")


@app.command
def export(
    pool: Path,
    file: Path,
    *,
    layout: Annotated[str, Parameter(name="--format")] = "responses",
    force: bool = False,
) -> None:
    """Write a pool as one file with one row per response, or per problem.

    Parameters
    ----------
    pool
        The pool's folder.
    file
        Ends in .jsonl or .parquet.
    layout
        Names of the columns: responses, trl or verl; problems has a row per problem with its pass
        rate.
    force
        Replace an existing file.
    """
    from offline_rlvr.pool.export import export as write

    rows = write(pool, file, layout, replace=force)
    print(f"{file}: {rows} rows")


for _verb in (upkeep.verify, upkeep.repair, upkeep.merge, upkeep.push, upkeep.pull):
    app.command(_verb)
app.command(import_pool, name="import")
