"""How hypothesis runs here."""

from hypothesis import settings

# Without a clock: machines differ, and the first example pays for what is imported.
settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")
