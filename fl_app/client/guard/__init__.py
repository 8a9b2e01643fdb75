"""Before it answers, a client looks at the weights it was sent, at the architecture, and at what it is about to send."""

from fl_app.client.guard.mod import guard_mod
from fl_app.client.guard.round import Guarded, guard_of
from fl_app.client.guard.watch import Watch

__all__ = ["Guarded", "Watch", "guard_mod", "guard_of"]
