"""What all tests share."""

from hypothesis import HealthCheck, settings

# How long it takes to make an input says how busy the machine is. There are hundreds of properties, and each run tries
# other inputs: fewer at a time keep `make test` a matter of minutes.
settings.register_profile(
    "busy", settings(), deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")
