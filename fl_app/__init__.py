"""The Flower app and what both sides of it need."""
