"""The dashboard as a person sees it: Locust's web UI and fleet's page in a real browser.

Needs Chromium: `make browser` installs it. Screenshots are left in the run's directory.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.chromium import INSTALL, Page, browse, find_chromium
from e2e.e2e_world import World, condition, eventually
from e2e.locust_dashboard import Dashboard

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not find_chromium(), reason=INSTALL),
]

PREFIX = "seen"
HEADER = "(document.querySelector('header')?.innerText ?? '').replaceAll('\\n', ' ')"
TILES = """[...document.querySelectorAll('.tile')]
  .map(each => [...each.children].map(part => part.innerText).join(' ')).join('; ')"""
WAITING = """[...document.querySelectorAll('figure')]
  .filter(each => !each.querySelector('.waiting').hidden)
  .map(each => each.querySelector('figcaption').firstChild.textContent)"""
SPILL = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
CANVASES = "[...document.querySelectorAll('canvas')].map(each => each.toDataURL()).join()"
COLOURED = """[...document.querySelectorAll('canvas')].map(each => {
  const {data} = each.getContext('2d').getImageData(0, 0, each.width, each.height);
  let coloured = 0;
  for (let at = 0; at < data.length; at += 4) {
    const [r, g, b] = data.slice(at, at + 3);
    if (data[at + 3] && Math.max(r, g, b) - Math.min(r, g, b) > 80) coloured++;
  }
  return coloured;
})"""


async def shows(page: Page, status: str, users: int | None = None) -> None:
    """Wait until the header says so."""
    told = f"Status {status}" + ("" if users is None else f" Users {users} ")
    await page.until(f"/{told.replace(' ', ' +')}/.test({HEADER})")


async def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for the cluster: what the page shows is an answer that is some moments old."""
    await asyncio.to_thread(eventually, is_so, what)


async def first_page(page: Page, dashboard: Dashboard, shots: Path) -> None:
    """Follow the address that was printed: it shows the API server, and has a number of nodes."""
    await page.open(dashboard.link)
    assert await page.ask("location.pathname + location.search") == "/fleet"
    assert await page.ask("document.cookie") == ""  # it has one that scripts cannot read
    for words in ("4 nodes Ready", "[0-9.]+ cores, the API server's", "[0-9.]+ requests in queues"):
        await page.until(f"/{words}/.test({TILES})")
    await page.fill("nodes", 6)
    await page.click("Apply")
    await page.until(f"/6 nodes Ready/.test({TILES})")
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    await page.call("Emulation.setDeviceMetricsOverride", **size)
    await page.until(f"({SPILL}) <= 0")  # charts take their new width a moment later
    await page.screenshot(shots / "narrow.png")
    await page.call("Emulation.clearDeviceMetricsOverride")


async def drive(page: Page, dashboard: Dashboard, world: World, shots: Path) -> None:
    await page.open(dashboard.url)
    await page.until("document.body.innerText.includes('This dashboard is closed')")
    await first_page(page, dashboard, shots)
    await page.click("Locust: API users")
    await shows(page, "RUNNING", 6)

    await page.click("Edit")
    await page.fill("userCount", 16)
    await page.fill("spawnRate", 5)
    await page.screenshot(shots / "edit.png")
    await page.click("Update")
    await shows(page, "RUNNING", 16)
    await until(lambda: len(world.nodes(PREFIX)) == 16, "16 nodes")
    await page.until("document.body.innerText.includes('POST\\tleases')")
    await page.screenshot(shots / "statistics.png")

    await page.click("Charts")
    before = await page.until(CANVASES)
    await page.until(f"{CANVASES} !== {before!r}")
    await page.screenshot(shots / "charts.png")
    await page.click("Fleet")
    await page.until("document.body.innerText.includes('fleet-0000\\t16\\t16\\t16\\t0\\t')")
    await page.screenshot(shots / "fleet.png")
    await break_and_heal(page, world, shots)

    await page.click("Stop")
    await shows(page, "STOPPED")
    await until(lambda: world.nodes(PREFIX) == {}, "no node")
    await page.click("New")
    await page.fill("userCount", 5)
    await page.fill("spawnRate", 5)
    assert not await page.ask("document.body.innerText.includes('no host attribute')")
    await page.screenshot(shots / "form.png")
    await page.click("Start")
    await shows(page, "RUNNING", 5)
    await until(lambda: len(world.nodes(PREFIX)) == 5, "5 nodes")

    await page.open(f"{dashboard.url}/fleet")
    await page.until("document.body.innerText.includes('fleet-0000\\t5\\t5\\t5\\t0\\t')")
    coloured = await page.until(
        f"(found => found[0] && found[1] && found[2] && found[4] && found[7] && found)({COLOURED})"
    )
    assert len(coloured) == 9
    assert "Pod starts" in await page.ask(WAITING)  # there are no pods
    await page.screenshot(shots / "page.png")
    assert not page.errors


async def break_and_heal(page: Page, world: World, shots: Path) -> None:
    """Let the network of a quarter of the nodes go, and come back."""

    def out() -> int:
        nodes = world.nodes(PREFIX).values()
        return sum(condition(each, "Ready") == "False" for each in nodes)

    panel = "document.querySelector('.fleet-faults').innerText"
    await page.until("Boolean(document.querySelector('.fleet-faults select option'))")
    await page.choose("type", "Partition")
    await page.click("Inject")  # the nodes of light have no connections of their own
    await page.until(f"{panel}.includes('Partition: the nodes of this run share connections')")
    await page.choose("type", "NetworkNotReady")
    offered = "[...document.querySelectorAll('#fleet-zones option')].map(each => each.value).join()"
    assert await page.ask(offered) == "zone-a,zone-b,zone-c"
    await page.fill("selector", "zone")
    await page.click("Inject")
    await page.until(f"{panel}.includes('selector: ')")
    await page.fill("selector", "kubernetes.io/os=linux")
    await page.fill("share", "25%")
    await page.fill("for", "30m")
    await page.click("Inject")
    await page.until(f"{panel}.includes('fault 1: NetworkNotReady on 4 of 16 nodes for 30m')")
    await page.until(f"/1\\tNetworkNotReady\\t4 of 16\\t/.test({panel})")
    await page.screenshot(shots / "faults.png")
    await until(lambda: out() == 4, "4 nodes are NotReady")
    await page.click("Heal")
    await page.until(f"{panel}.includes('fault 1: NetworkNotReady is healed')")
    await page.until(f"!{panel}.includes('4 of 16')")
    await until(lambda: out() == 0, "all nodes are Ready again")


def test_a_run_is_steered_from_the_browser(world: World, tmp_path: Path) -> None:
    arguments = ("--dashboard", "--max-nodes=16", "--rate=20", "--fidelity=light", world.quick())
    with world.spawn(PREFIX, 4, *arguments) as run:
        run.until("dashboard: http://")
        dashboard = Dashboard(run)
        eventually(dashboard.shows("running", 4), "4 users")

        async def scenario() -> None:
            async with browse(tmp_path) as page:
                await drive(page, dashboard, world, run.directory)

        asyncio.run(scenario())
        run.end_well_or_late()
    world.assert_nothing_left(PREFIX)
