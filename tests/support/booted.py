"""The name of a boot in a made-up /proc."""

from pathlib import Path


def boot(proc: Path, name: str = "one") -> None:
    """Let the host of this /proc have booted once, or once more under another name."""
    path = proc / "sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{name}\n")
