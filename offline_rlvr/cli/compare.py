"""`offline-rlvr compare RUN...`: methods side by side on one pool."""

from pathlib import Path


def compare(*runs: Path, output: Path = Path("comparison"), json: bool = False) -> None:
    """Compare runs on one pool: who is better, how sure that is, and how far each has drifted.

    Runs that differ in their seeds only are one method. Writes compare.html, the same as Markdown,
    and all numbers and figures as CSV and PNG files.

    Parameters
    ----------
    runs
        Run folders, or folders that hold runs.
    output
        The folder to write into.
    json
        Print the numbers as JSON instead of plain lines.
    """
    from json import dumps

    from offline_rlvr.report.compare import compare_runs

    compared = compare_runs(runs, output)
    print(dumps(compared.facts, indent=1) if json else "\n".join(compared.lines))
