"""Attacks on captured updates. They may import `fl_app.local`, `fl_app.models` and `fl_app.spec`, and so cannot reach data."""
