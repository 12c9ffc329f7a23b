"""What a repair or a merge did, for people at a terminal."""

from pathlib import Path

from offline_rlvr.pool.merge import Merged
from offline_rlvr.pool.repair import Damage
from offline_rlvr.pool.show import printable


def format_damage(path: Path, damage: Damage) -> str:
    """Each damaged file with its reason, and what the pool is without them."""
    if not damage.reasons:
        return f"{path} is whole: {damage.groups} groups"
    files = "1 damaged file" if len(damage.reasons) == 1 else f"{len(damage.reasons)} damaged files"
    lines = [f"{path}: {files}", *(f"  {printable(text)}" for text in damage.reasons.values())]
    lines.append(f"lost with them: {damage.lost} of {damage.groups} groups with their grades")
    for name, count in damage.ungraded.items():
        lines.append(f"not graded by {name}: {count} of the {len(damage.kept)} other groups")
    return "\n".join(lines)


def format_merged(path: Path, merged: Merged) -> str:
    """What was put together, and what is not whole."""
    lines = [f"{path}: {merged.groups} groups from {len(merged.slices)} of {merged.of} slices"]
    for name, count in merged.ungraded.items():
        lines.append(f"grades of {name} are incomplete: {count} groups have none")
    for number, name in merged.in_use.items():
        lines.append(f"slice {number}/{merged.of} used the grades of {name or 'nobody'}")
    return "\n".join(lines)
