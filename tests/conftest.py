"""What all tests share."""

from hypothesis import HealthCheck, settings

# how long it takes to make an input says how busy the machine is
settings.register_profile("busy", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
