"""What errors say, for people."""


def said(error: BaseException) -> str:
    """What an error says, on one line: of the operating system's, the reason without its number and file."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split()) or type(error).__name__


def told(error: BaseException) -> str:
    """The same with the kind of the error, unless it is one of ours, whose words are for people."""
    ours = type(error).__module__.partition(".")[0] in ("adversary", "client_defenses", "fl_app", "strategies")
    return said(error) if ours else f"{type(error).__name__}: {said(error)}"
