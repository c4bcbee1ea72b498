"""The app of a Django project, for `penstock worker penstock.integrations.django_worker:app`.

Importing it sets Django up, as $DJANGO_SETTINGS_MODULE says, and imports the module `tasks` of each installed
application. `app` serves the backend "default" of TASKS. For another one, write its alias in place of `app`.
"""

from __future__ import annotations

from penstock.app import Penstock
from penstock.errors import ConfigurationError
from penstock.integrations.requirements import needs

with needs("django", "django"):
    import django
    from django.utils.module_loading import autodiscover_modules

django.setup()

from penstock.integrations.django import app_of  # noqa: E402 - it needs the settings

autodiscover_modules("tasks")

app = app_of()


def __getattr__(alias: str) -> Penstock:
    try:
        return app_of(alias)
    except ConfigurationError as error:
        raise AttributeError(str(error)) from None
