"""`python -m lucius.cli` is `lucius`: how child processes are started, whatever the PATH."""

from lucius.cli.main import app

if __name__ == "__main__":
    app(prog_name="lucius")
