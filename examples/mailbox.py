"""Mailboxes: senders post, the owner reads when it is online, and two workers share a second mailbox."""

from penstock import Keep, Penstock

app = Penstock(prefix="example")


def letters() -> None:
    box = app.mailbox("user:17")
    box.post({"text": "hi"}, sender="ada")
    for _ in range(2):  # a program that does not know whether its first attempt arrived
        box.post({"text": "rent is due"}, sender="bo", id="rent:2026-11")

    for message in box.pull():
        print(f"{message.number}. {message.sender}: {message.body['text']}")
    print(f"{box.unread()} unread: reading does not move the cursor")
    box.ack(upto=box.pull()[-1])
    print(f"{box.unread()} unread: acknowledging does")


def work() -> None:
    box = app.mailbox("scans")
    box.keep(Keep(bytes=10_000_000, full="refuse"))
    box.post_many(f"page {n}" for n in range(6))
    for worker in ("ada", "bo"):
        for item in box.claim(3, lease=30):
            print(f"{worker} has {item.body}")
            item.ack()
    print(f"{box.info().bytes} bytes left")


if __name__ == "__main__":
    with app:
        try:
            letters()
            work()
        finally:
            for name in ("user:17", "scans"):
                app.mailbox(name).delete()
