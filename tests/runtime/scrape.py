"""Scraper of an app's metrics."""

from prometheus_client.parser import text_string_to_metric_families as read

from pollux.observe.metrics import exposition
from tests.runtime.test_app import until


class Scrape:
    """What a scraper reads."""

    def __init__(self, text: str, read=read) -> None:
        self.text = text
        self.samples = {}
        self.families = {}
        for family in read(text):
            self.families[family.name] = family
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                assert key not in self.samples, f"{key} is there twice"
                self.samples[key] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[f"pollux_{name}", tuple(sorted(labels.items()))]

    def total(self, name: str, **labels: str) -> float:
        return sum(self.all(name, **labels).values())

    def all(self, name: str, **labels: str) -> dict:
        wanted = labels.items()
        return {key: value for key, value in self.samples.items() if key[0] == f"pollux_{name}" and wanted <= {*key[1]}}

    def names(self) -> set[str]:
        return {name for name, _ in self.samples}


async def scrape(app) -> Scrape:
    return Scrape((await exposition(app)).decode())


async def settled(app, count: int) -> None:
    async def look():
        return app.runtime.settler.settled >= count

    await until(look, f"{count} ends are recorded")


def worries(health) -> list[str]:
    """Of what; a busy machine may hold any event loop."""
    return [finding.name for finding in health.worries() if finding.name != "loop"]
