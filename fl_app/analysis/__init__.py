"""What results say: settings, the worst attacker, thresholds, verdicts; computed once, for gate, report, sweeps and CLI."""
