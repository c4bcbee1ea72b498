"""The dashboard: pages that show queues, jobs, workers, locks, messages and files of one app, live.

    penstock dashboard                                               # on loopback

    from penstock.web import dashboard

    asgi.mount("/penstock", dashboard(app, auth=user_of_request))    # inside an application of yours

It asks the inspector (`ops/inspect.py`) and decides nothing itself. Needs the extra `web`: starlette and uvicorn.
"""

from penstock.web.dashboard import dashboard

__all__ = ["dashboard"]
