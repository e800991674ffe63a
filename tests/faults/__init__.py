"""Each fault at each phase, for real: a table, its quick form for every change, and a soak."""
