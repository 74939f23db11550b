"""What holds for every test: hypothesis measures no time, because machines that run tests are busy."""

from hypothesis import HealthCheck, settings

settings.register_profile("recall", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("recall")
