"""What this machine has."""

import os


def memory() -> int:
    """Bytes of main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def gigabytes(size: float) -> str:
    """A number of bytes, for people."""
    return f"{size / 1e9:,.1f} GB"
