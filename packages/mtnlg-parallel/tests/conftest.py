"""Settings of hypothesis for all tests."""

from hypothesis import settings

# No deadline: machines differ, and the first example includes imports.
settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")
