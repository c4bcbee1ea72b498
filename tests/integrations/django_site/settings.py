"""Its settings. The database is in memory, and shared by the threads of a process."""

from importlib.util import find_spec

SECRET_KEY = "not one"
USE_TZ = True
TIME_ZONE = ""  # with a zone, Django would change that of the test process
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "file:penstock?mode=memory&cache=shared",
        "OPTIONS": {"uri": True},
    }
}
INSTALLED_APPS = ["tests.integrations.django_site"]
TASKS = {
    "default": {
        "BACKEND": "penstock.integrations.django.PenstockBackend",
        "QUEUES": ["default", "mail", "reports"],
        "OPTIONS": {"PREFIX": "django"},
    },
    "retrying": {
        "BACKEND": "penstock.integrations.django.PenstockBackend",
        "OPTIONS": {"PREFIX": "retrying", "RETRY": 1, "ON_COMMIT": False},
    },
    "other": {
        "BACKEND": f"{'django.tasks' if find_spec('django.tasks') else 'django_tasks'}.backends.dummy.DummyBackend"
    },
}
