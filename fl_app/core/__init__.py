"""What everything else stands on: the client rule, specs, seeds, the wire, spaces, observations. It imports nothing of ours."""
