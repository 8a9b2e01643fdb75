"""Attacks on captures: jobs and workers, naive and informed sessions, background work, audits of foreign apps."""
