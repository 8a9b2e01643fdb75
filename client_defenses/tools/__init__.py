"""What several defenses share."""
