"""Poll every URL of urls.txt once a minute: `python poll_urls.py`."""

import logging
from pathlib import Path

from pollux import Pollux, every

app = Pollux("sqlite:///urls.db", seats=200, keep_history=20)

for url in Path("urls.txt").read_text().split():
    app.add(
        "http",
        every("60s"),
        id=url.partition("://")[2].replace("?", "/").rstrip("/"),  # an id is for good: let it follow from the URL
        params={"url": url, "max_size": "200kB"},
        timeout="10s",
        retry=False,  # the next poll comes anyway
        overlap="skip",  # and never two of one URL
    )

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    app.run()
