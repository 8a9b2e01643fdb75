"""Real clients: a SuperLink and SuperNodes as processes that speak gRPC, with TLS and node keys."""
