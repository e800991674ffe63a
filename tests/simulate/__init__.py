"""Seeded random runs of the real scheduler in virtual time."""
