"""Penstock inside of other frameworks: one module for each, imported only by programs that use it.

The modules of this folder, in reading order:

    pytest_plugin.py      the fixtures of pytest
    prometheus.py         metrics of jobs, queues and lock waits
    opentelemetry.py      traces that continue from the enqueue into the run
    starlette.py, fastapi.py
                          the lifespan of a web application, and the app of a request
    django.py, django_worker.py
                          the backend of Django's tasks, and the app that runs them
    django_outbox/        Django's transactions and the outbox
    flask.py              jobs in the context of a Flask application
    requirements.py       what to install, if the framework of an integration is missing
"""
