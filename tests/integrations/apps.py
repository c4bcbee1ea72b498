"""A small service, for tests that name an app by its module."""

from penstock import Penstock

app = Penstock()


@app.task(queue="mail")
def send_email(to: str, subject: str) -> None: ...
