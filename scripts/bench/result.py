"""What every benchmark ends with: a table on the terminal, and its figures as JSON."""

import argparse
import datetime
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


def add_option(parser: argparse.ArgumentParser) -> None:
    """`--json FILE`."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows in columns; the first one is text, the others are numbers."""
    texts = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    print(f"\n{title}")
    for row in texts:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip(), flush=True)


def finish(figures: dict[str, Any], path: Path | None) -> None:
    """Add date and machine, and write the JSON file where one is asked for."""
    figures |= {"date": datetime.date.today().isoformat(), "machine": machine()}
    shape = figures["machine"]
    print(f"\n{figures['date']}, {shape['cores']} cores of {shape['cpu']}, torch {shape['torch']}")
    if path is not None:
        path.write_text(json.dumps(figures, indent=1))


def machine() -> dict[str, Any]:
    """The shape of the machine, without its name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    facts: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": names[0] if names else platform.machine(),
        "torch": torch.__version__,
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts
