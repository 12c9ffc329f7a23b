"""Bytes and seconds in words."""


def size(count: float) -> str:
    """Bytes: `640 B`, `27.1 MiB`, `19.2 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 999.5:  # above, three digits would be four
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:,.2f} TiB"


def duration(seconds: float) -> str:
    """Seconds: `2.5 s`, `40 s`, `12 min`, `1 h 05 min`."""
    if seconds < 59.5:
        return f"{seconds:.2g} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes:02d} min" if hours else f"{minutes} min"
