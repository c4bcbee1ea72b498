"""A worker inside your own program: jobs run beside the program's other coroutines, and stop with them."""

import asyncio
import time

from penstock import Penstock, Worker, WorkerSettings

app = Penstock(prefix="example")


@app.task(queue="thumbnails")
def thumbnail(path: str) -> str:
    time.sleep(0.05)  # a `def` task runs in a thread, so it does not block the program's event loop
    return path.replace(".jpg", "-small.jpg")


async def serve_requests() -> None:
    """The program's other work: here it enqueues a job for each upload, and waits for the results."""
    uploads = [f"photo-{n}.jpg" for n in range(8)]
    jobs = await app.enqueue_many.aio(thumbnail.call(path) for path in uploads)
    for job in jobs:
        print(await job.result.aio(timeout=10))


async def main() -> None:
    worker = Worker(app, WorkerSettings(queues=("thumbnails",), concurrency=4))
    async with app, asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        await serve_requests()
        worker.stop()  # jobs that still run may finish; the block ends when they have


asyncio.run(main())
