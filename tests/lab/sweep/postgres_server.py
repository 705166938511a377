"""A PostgreSQL server on a free port, in a temporary folder that goes with it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

PASSWORD = "not-to-be-seen"


def server_programs() -> Path | None:
    """The folder of initdb and postgres; Debian keeps them off the PATH."""
    found = [Path(path).resolve().parent for path in (shutil.which("postgres"),) if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in found if (folder / "initdb").exists()), None)


class Server:
    def __enter__(self) -> Server:
        programs = server_programs()
        assert programs is not None
        self.folder = Path(tempfile.mkdtemp(prefix="gatewise-postgres-"))
        # The server refuses to be root.
        self.user = "postgres" if os.getuid() == 0 else None
        if self.user:
            shutil.chown(self.folder, self.user)
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        if self.user:
            shutil.chown(secret, self.user)
        data = self.folder / "data"
        login = ["--username=gatewise", f"--pwfile={secret}", "--auth=scram-sha-256"]
        self.run([programs / "initdb", "-D", data, "-N", *login])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        settings = ["listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}", "fsync=off"]
        self.command = [str(programs / "postgres"), "-D", str(data), "-p", str(self.port)]
        for setting in settings:
            self.command += ["-c", setting]
        self.restart()
        return self

    def restart(self) -> None:
        nowhere = subprocess.DEVNULL
        self.process = subprocess.Popen(
            self.command, user=self.user, stdout=nowhere, stderr=nowhere, cwd=self.folder
        )
        self.wait()

    def stop(self) -> None:
        """At once: it does not wait for those who are connected."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait()

    def run(self, command: list[Path | str]) -> None:
        subprocess.run(
            list(map(str, command)), user=self.user, check=True, capture_output=True, cwd=self.folder
        )

    def wait(self) -> None:
        import psycopg

        for _ in range(200):
            try:
                psycopg.connect(self.url()).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.1)
        raise TimeoutError("the server does not answer")

    def url(self, password: str = PASSWORD) -> str:
        return f"postgresql://gatewise:{password}@127.0.0.1:{self.port}/postgres"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
