"""hypothesis without a clock: machines differ, and the first example pays for what is imported."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")
