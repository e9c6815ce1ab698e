"""Stops a server that a test run started, if the run is killed before it can stop the server itself."""

import subprocess


class Guard:
    def __init__(self, script: str) -> None:
        """Start a shell that runs `script` once this process is gone, which closes the other end of its stdin."""
        self._process = subprocess.Popen(
            ["sh", "-c", f"read -r _; {script}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal that ends the test run must not end its guards
        )

    def dismiss(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
