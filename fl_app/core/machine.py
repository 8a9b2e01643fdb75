"""What this machine has."""

import os


def memory() -> int:
    """Bytes of main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def gigabytes(size: float) -> str:
    """A number of bytes, for people."""
    return f"{size / 1e9:,.1f} GB"


def cores() -> int:
    """The CPU cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_threads() -> int:
    """The CPU threads to compute with when nothing else runs: what the user says for OpenMP, else one per core."""
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(asked) if asked.isdecimal() and int(asked) else cores()


def wait_passively() -> None:
    """Have OpenMP threads sleep while they wait, unless the user says otherwise; call this before torch is imported.

    Threads that spin beside other work took 41 s for what takes 2 s.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")


RAY_ADDRESS = "THORNS_RAY_ADDRESS"


def name_cluster(address: str) -> None:
    """Mean this Ray cluster, in this process and in those that it starts."""
    os.environ[RAY_ADDRESS] = address


def ray_address() -> str:
    """The Ray cluster that is meant: one of our own on this machine, unless --cluster or THORNS_RAY_ADDRESS names another.

    RAY_ADDRESS says that there is a cluster around, not that data and captures of this machine are to go there.
    """
    return os.environ.get(RAY_ADDRESS) or "local"
