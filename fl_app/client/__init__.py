"""What a client decides and does: its own policy, secret and state, and how it answers a server."""
