"""The dashboard: pages that show queues, jobs, workers, locks, messages and files of one app, live.

    penstock dashboard                                               # on loopback

    from penstock.web import dashboard

    asgi.mount("/penstock", dashboard(app, auth=user_of_request))    # inside an application of yours

It asks the inspector (`ops/inspect.py`) and decides nothing itself. Needs the extra `web`: starlette and uvicorn.

The modules of this folder, in reading order:

    dashboard.py          the dashboard as an ASGI application
    access.py             the rights of its visitors
    questions.py          what a page can ask
    actions.py            what a page can do
    bulk.py               actions on all jobs that match a filter
    sampler.py            one sample of all queues for all viewers, and their history
    output.py             what a job emits, in pages
    answers.py            answers as JSON, masked and cut
"""

from penstock.web.dashboard import dashboard

__all__ = ["dashboard"]
