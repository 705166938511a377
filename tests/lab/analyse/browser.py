"""A headless chromium for the tests of the page; skipped, with the reason, where there is none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-background-networking --disable-component-update
--disable-sync --no-first-run --disable-dev-shm-usage --window-size=1280,1000""".split()


class Browser:
    """One window; what its pages logged and asked for since they were opened."""

    def __init__(self, profile: Path) -> None:
        webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
        programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
        missing = [name for name, path in programs.items() if path is None]
        if missing:
            pytest.skip(f"not installed: {', '.join(missing)}; the page is not tested in a browser")
        options = webdriver.ChromeOptions()
        options.binary_location = programs["chromium"]
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.ChromeService(executable_path=programs["chromedriver"])
        self.driver = webdriver.Chrome(options=options, service=service)

    def open(self, path: Path) -> None:
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)  # what came before does not count
        self.driver.get(path.as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def settle(self) -> None:
        """Wait until the frame that shows the last change is drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
        )

    def text(self, selector: str) -> str:
        self.settle()
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses that were asked for, the page's own first."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def width(self, pixels: int, height: int = 900, dark: bool = False) -> None:
        size = {"width": pixels, "height": height, "deviceScaleFactor": 1, "mobile": pixels < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
