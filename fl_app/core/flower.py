"""The one thing that depends on the version of Flower: deployment. All else works with any that pyproject.toml allows."""

from importlib.metadata import version

GRPC_SERIES = "1.39"
"""The last series whose SuperNodes speak gRPC to the SuperLink; from 1.40 on they speak HTTP."""


class FlowerVersionError(RuntimeError):
    """Another Flower is needed; the message says which, and how to get it."""


def speaks_grpc() -> bool:
    """Whether the installed Flower can deploy."""
    return version("flwr").startswith(f"{GRPC_SERIES}.")


def need_grpc() -> None:
    """Raise one clear line if the installed Flower cannot deploy."""
    if not speaks_grpc():
        raise FlowerVersionError(
            f"thorns deploy speaks gRPC, which needs flwr {GRPC_SERIES}; {version('flwr')} is installed: "
            "pip install 'thorns[deploy]' (everything else works with both)"
        )
