"""Ends a server that a test run started, should the run be killed and so never come to end it itself."""

import subprocess


class Guard:
    def __init__(self, script: str) -> None:
        """The script is run by a shell when this process is gone: then nobody holds the other end of its pipe."""
        self._process = subprocess.Popen(
            ["sh", "-c", f"read -r _; {script}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends the test run must not end its guards
        )

    def dismiss(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
