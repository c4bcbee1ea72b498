"""Takes the pictures of the dashboard that the documents show, of a system that has been at work for a while.

    python tests/browser/shop.py 8399 &                                # then wait for a quarter of an hour
    python tests/browser/pictures.py http://127.0.0.1:8399/ docs/howto/images [NAME ...]

It needs Debian's chromium and playwright (`make test-browser` installs both). A picture has at most 256 colours, which
makes it a third as large. The pictures of a queue wait for a moment at which tenants wait. Look at each one before you
keep it: a chart may be empty, or a row cut.
"""

import base64
import os
import re
import shutil
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

browser_api: Any = import_module("playwright.sync_api")  # by name, because `make check` runs where it is not installed

SIZE = {"width": 1280, "height": 800}

NAMES = {
    "overview-light": "overview",
    "overview-dark": "overview",
    "queue-light": "queue/mail",
    "queue-dark": "queue/mail",
    "job-order-light": "job/{order}",
    "dead-light": "dead",
    "workers-light": "workers",
    "tasks-light": "tasks",
}
"""Each picture, and the page that it shows. `{order}`: a durable job that waits for a signal."""

PIXELS = """async (png) => {
    const picture = new Image();
    picture.src = "data:image/png;base64," + png;
    await picture.decode();
    const canvas = new OffscreenCanvas(picture.width, picture.height), place = canvas.getContext("2d");
    place.drawImage(picture, 0, 0);
    const all = place.getImageData(0, 0, picture.width, picture.height).data;
    let text = "";
    for (let at = 0; at < all.length; at += 8192) text += String.fromCharCode(...all.subarray(at, at + 8192));
    return btoa(text);
}"""


def main(address: str, folder: Path, chosen: Iterable[str]) -> None:
    with browser_api.sync_playwright() as playwright:
        sandbox = [] if os.getuid() else ["--no-sandbox"]  # the sandbox of chromium refuses root
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        for name in chosen or NAMES:
            scheme: Any = name.rpartition("-")[2]
            page = browser.new_context(viewport=SIZE, color_scheme=scheme, locale="en-GB").new_page()
            page.goto(address)
            found = page.request.get(f"{address}api/find?queue=orders&state=sleeping").json()["jobs"]
            newest = max(found, key=lambda one: float(one["enqueued"]), default={"id": ""})
            page.evaluate("to => { location.hash = `#/${to}`; }", NAMES[name].format(order=newest["id"]))
            page.locator("main [aria-busy]").first.wait_for(state="detached")
            if name.startswith("queue"):  # a newsletter comes every five minutes: then tenants wait
                row = page.locator(".card:has(h2:text('Who waits')) tbody tr td:nth-child(3)").first
                browser_api.expect(row).to_have_text(re.compile(r"\d\d"), timeout=330_000)
            else:
                page.wait_for_timeout(5000)  # rates need two answers
            page.locator(".side .end .mono").evaluate("one => { one.textContent = 'valkey://localhost:6379'; }")
            shot = base64.b64encode(page.screenshot()).decode()
            pixels = base64.b64decode(page.evaluate(PIXELS, shot))
            (folder / f"{name}.png").write_bytes(png(pixels, SIZE["width"], SIZE["height"]))
            page.context.close()
        browser.close()


def png(pixels: bytes, width: int, height: int) -> bytes:
    """A PNG with a palette of the most frequent colours. `pixels`: four bytes each, of which the last is ignored."""
    colours = [pixels[at : at + 3] for at in range(0, len(pixels), 4)]
    counted = Counter(colours)
    palette = [colour for colour, _ in counted.most_common(256)]
    number = {colour: at for at, colour in enumerate(palette)}
    for colour in counted:
        if colour not in number:
            number[colour] = min(range(len(palette)), key=lambda at: distance(palette[at], colour))
    rows = bytes(number[colour] for colour in colours)
    lines = b"".join(b"\0" + rows[at : at + width] for at in range(0, len(rows), width))
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = ((b"IHDR", head), (b"PLTE", b"".join(palette)), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def distance(one: bytes, other: bytes) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
