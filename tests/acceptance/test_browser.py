"""The pages of a node in a real browser."""

import json
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from pollux.server import ApiServer, ServerOptions
from pollux.server.auth import Role
from pollux.server.routes import EVERY
from pollux.server.routes.openapi import OPENAPI, PAGE, document
from tests.acceptance.api_world import SECRETS, an_app
from tests.servers.chromium import a_browser

# One browser is enough for the machine, and for all these tests: each has tabs of its own.
pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.asyncio(loop_scope="module")]

TOKEN = SECRETS[Role.ADMIN]
NODES = '.opblock-get:has([data-path="/api/v2/nodes"])'
PLACE = "pollux.token"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    async with a_browser() as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url():
    async with an_app(runs=False) as app:
        server = ApiServer(app, ServerOptions(port=0, token=TOKEN))
        await server.start()
        try:
            yield f"http://127.0.0.1:{server.port}"
        finally:
            await server.stop()


@asynccontextmanager
async def docs_page(browser, url):
    async with browser.page() as page:
        await page.go(f"{url}{PAGE}")
        await page.until_there(".opblock")
        yield page


async def status(page):
    """Of a request that the page itself sends: which nodes are there?"""
    if not await page.has(f"{NODES}.is-open"):  # a reload opens it again
        await page.click(f"{NODES} .opblock-summary-control")
    if await page.has(f"{NODES} .btn-clear"):  # of the answer before
        await page.click(f"{NODES} .btn-clear")
    else:
        await page.click(f"{NODES} .try-out__btn")
    await page.click(f"{NODES} .execute")
    shown = f"document.querySelector('{NODES} .live-responses-table tbody .response-col_status')"
    return await page.until(f"{shown}?.innerText.trim()", "an answer is shown")


async def authorize(page, token):
    await page.click(".auth-wrapper .authorize")
    await page.type(".auth-container input", token)
    await page.click(".auth-btn-wrapper .authorize")
    await page.click(".auth-btn-wrapper .btn-done")


async def test_the_first_page_says_what_this_is_and_its_links_work(browser, url):
    async with browser.page() as page:
        await page.go(f"{url}/")
        assert await page.run("document.title") == "Pollux"
        assert await page.run("document.querySelector('h1').innerText") == "Pollux"
        assert "a polling and job scheduler" in await page.run("document.body.innerText")
        links = await page.run("[...document.links].map(each => each.getAttribute('href'))")
        assert links == [PAGE, OPENAPI]
        for number, link in enumerate(links):
            loads = page.loads
            await page.run(f"document.links[{number}].click()")
            await page.loaded(loads)
            assert await page.run("location.pathname") == link
            if link == PAGE:
                await page.until_there(".opblock")
            else:
                assert '"openapi":"3.1.0"' in await page.run("document.body.innerText")
            await page.go(f"{url}/")
        assert page.complaints == []


async def test_the_page_of_the_api_lists_every_operation_and_breaks_no_rule_of_its_own(browser, url):
    """Its policy forbids scripts and places of others: the browser would complain."""
    async with docs_page(browser, url) as page:
        count = sum(len(operations) for operations in document(EVERY)["paths"].values())
        assert await page.run("document.querySelectorAll('.opblock').length") == count
        assert page.complaints == []


async def test_the_token_stays_over_a_reload_and_with_its_tab(browser, url):
    async with docs_page(browser, url) as page:
        assert await status(page) == "401"
        await authorize(page, TOKEN)
        assert await status(page) == "200"

        await page.reload()
        await page.until_there(".auth-wrapper .locked")
        assert await status(page) == "200"
        assert await page.run(f"sessionStorage.getItem('{PLACE}')") == TOKEN
        kept = await page.run("JSON.stringify(localStorage) + document.cookie")
        assert TOKEN not in kept, "what is on the disk outlives the tab"

        async with docs_page(browser, url) as other:
            assert await other.run(f"sessionStorage.getItem('{PLACE}')") is None
            assert await status(other) == "401", "another tab has its own"

        await page.click(".auth-wrapper .authorize")
        await page.click(".auth-btn-wrapper button:not(.btn-done)")
        await page.click(".auth-btn-wrapper .btn-done")
        await page.reload()
        await page.until_there(".opblock")
        assert await page.run(f"sessionStorage.getItem('{PLACE}')") is None
        assert await status(page) == "401", "who logs out is out"


async def test_the_examples_that_are_shown_have_the_field_names_of_today(browser, url):
    """What a reader sees of an operation with a body, and of the filters of a list, is what the API calls it now."""
    described = document(EVERY)
    fields = described["components"]["schemas"]["JobBody"]["properties"]
    older = {name for name, field in fields.items() if field.get("deprecated")}
    async with docs_page(browser, url) as page:
        looked = 0
        for path, operations in described["paths"].items():
            for method, operation in operations.items():
                body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
                if "example" not in body:
                    continue
                block = f'.opblock-{method}:has([data-path="{path}"])'
                await page.click(f"{block} .opblock-summary-control")
                shown = f"document.querySelector('{block} .body-param__example')"
                example = json.loads(await page.until(f"{shown}?.innerText", f"the example of {method} {path}"))
                assert example == body["example"], path
                for each in example.get("jobs", [example]):
                    assert not older & set(each), path
                looked += 1
        assert looked >= 9
