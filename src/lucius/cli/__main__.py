"""Makes `python -m lucius.cli` the `lucius` command: child processes are started so, independent of the PATH."""

from lucius.cli.main import app

if __name__ == "__main__":
    app(prog_name="lucius")
