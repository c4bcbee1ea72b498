"""Tasks for isolated runs of an app that seals."""

from penstock import Penstock, Retry, Settings, current
from tests.seals import TestSeal

app = Penstock("unix:///nowhere", settings=Settings(prefix="nowhere", seal=TestSeal("k1")))


@app.task(isolate=True, retry=Retry(1, base=0))
def report(text: str) -> str:
    job = current()
    job.log(text)
    job.progress(0.5, text)
    if job.attempt == 1:
        raise ValueError(text)
    return text
