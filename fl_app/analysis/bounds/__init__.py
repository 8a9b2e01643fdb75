"""What no attack can do: limits that follow from an update itself, from the law of its noise, or from differential privacy."""
