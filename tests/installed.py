"""The tree of the container image, made without a container engine: what its files say is done here, in a folder.

The wheel is built of nothing but what the Dockerfile copies, and unpacked into a virtual environment of its own at
`/opt/pollux` of that folder; what it depends on is lent by the environment of the tests.  Paths in the words of a file
(`/etc/pollux`, `/var/lib/pollux`, ...) are meant inside of the folder, ports are exchanged for free ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from compileall import compile_dir
from email.parser import Parser
from pathlib import Path
from typing import Any

from tests.deploying import steps_of
from tests.leaks import MARK

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PLACES = ("/opt/pollux", "/etc/pollux-secret", "/etc/pollux", "/srv", "/var/lib/pollux", "/run/secrets")
_PLACE = re.compile("|".join(rf"(?<![\w.]){re.escape(place)}\b" for place in PLACES))
_SCRIPT = "#!{python}\nimport sys\nfrom {module} import {name}\nsys.exit({name}())\n"


class Image:
    """A folder that looks as the image does inside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        steps = steps_of((DEPLOY / "Dockerfile").read_text())
        begins = [number for number, (word, _) in enumerate(steps) if word == "FROM"]
        self.build, self.last = steps[: begins[-1]], dict(steps[begins[-1] :])
        self.metadata: Any = None  # of the wheel
        said = [words for word, words in steps[begins[-1] :] if word == "ENV"]
        self.told = dict(each.split("=", 1) for words in said for each in shlex.split(words))
        for place in PLACES:
            self.at(place).mkdir(parents=True, mode=0o700)
        self._install(self._wheel())

    def at(self, path: str) -> Path:
        return Path(self.within(path))

    def within(self, text: str) -> str:
        """The same words, with the paths of the image in this folder."""
        return _PLACE.sub(lambda place: f"{self.folder}{place[0]}", text)

    @property
    def command(self) -> list[str]:
        return [*json.loads(self.last["ENTRYPOINT"]), *json.loads(self.last["CMD"])]

    @property
    def health_check(self) -> list[str]:
        found: list[str] = json.loads(self.last["HEALTHCHECK"].partition(" CMD ")[2])
        return found

    def environ(self, more: Mapping[str, str]) -> dict[str, str]:
        """What the image says, and nothing of ours but the mark by which leftovers are found."""
        said = {name: self.within(value).replace("$PATH", os.defpath) for name, value in self.told.items()}
        return said | {name: value for name, value in os.environ.items() if name == MARK} | more

    @contextlib.contextmanager
    def started(
        self, command: list[str], environ: Mapping[str, str], **options: Any
    ) -> Iterator[subprocess.Popen[bytes]]:
        """The command as a process of the image; it is ended with the block if it did not end by itself."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": self.at("/var/lib/pollux")} | options
        process = subprocess.Popen(command, env=self.environ(environ), **pipes)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            process.wait()

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}

    def _wheel(self) -> Path:
        """Of what is copied into the stage that builds, and of nothing else."""
        build, made = self.folder / "build", self.folder / "made"
        build.mkdir()
        for word, said in self.build:
            if word == "COPY":
                for name in said.split()[:-1]:
                    if (ROOT / name).is_dir():
                        shutil.copytree(ROOT / name, build / name, ignore=shutil.ignore_patterns("__pycache__"))
                    else:
                        shutil.copy(ROOT / name, build / name)
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(made)]
        done = subprocess.run(command, cwd=build, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        [wheel] = made.glob("*.whl")
        return wheel

    def _install(self, wheel: Path) -> None:
        home = self.at("/opt/pollux")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=120)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = home / "lib" / version / "site-packages"
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(packages)
        compile_dir(packages, quiet=1)  # as pip does
        [about] = packages.glob("pollux_scheduler-*.dist-info")
        self.metadata = Parser().parsestr((about / "METADATA").read_text())
        for name, module, function in re.findall(
            r"^(\w+) = ([\w.]+):(\w+)$", (about / "entry_points.txt").read_text(), re.MULTILINE
        ):
            script = home / "bin" / name
            script.write_text(_SCRIPT.format(python=home / "bin" / "python", module=module, name=function))
            script.chmod(0o755)
        (packages / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
