"""Generated examples are judged by what they do, not by how long a busy machine takes for them."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
settings.load_profile("patient")
