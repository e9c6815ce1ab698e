"""The table of folders in docs/architecture.md, the import contracts and the code name the same imports."""

import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import grimp

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "lucius"
CODE = re.compile(r"`([a-z_]+)/?`")


def rows() -> list[tuple[list[str], set[str]]]:
    """Return the packages of each row, and the packages that they may import."""
    table = (ROOT / "docs" / "architecture.md").read_text().partition("## Folders")[2].partition("\n## ")[0]
    cells = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| `")]
    return [(CODE.findall(first), set(CODE.findall(last))) for first, _, last in cells]


def imports() -> dict[str, set[str]]:
    graph = grimp.build_graph("lucius", exclude_type_checking_imports=False)
    found = defaultdict[str, set[str]](set)
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            found[_package(module)].add(_package(other))
    return {package: others - {package} for package, others in found.items()}


def _package(module: str) -> str:
    return module.split(".")[1] if "." in module else "lucius"


def test_each_package_imports_exactly_the_packages_in_its_row() -> None:
    shared = next(set(packages) for packages, _ in rows() if "backoff" in packages)
    actual = imports()
    for packages, allowed in rows():
        seen = set[str]().union(*(actual.get(package, set()) for package in packages)) - set(packages)
        assert seen - shared == allowed - shared, packages


def test_every_package_has_a_row() -> None:
    named = [package for packages, _ in rows() for package in packages]
    here = [path.stem for path in SRC.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    assert sorted(named) == sorted(name for name in here if name != "__init__")


def contracts(kind: str) -> list[dict[str, Any]]:
    """Return the import contracts of one type in pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [contract for contract in settings if contract["type"] == kind]


def test_contracts_allow_exactly_the_imports_in_the_table() -> None:
    allowed = {package: imports for packages, imports in rows() for package in packages if "backoff" not in packages}
    table = {package: {one for one in allowed if package in allowed[one]} for package in allowed}
    found = {
        package.removeprefix("lucius."): {one.removeprefix("lucius.") for one in contract["allowed_importers"]}
        for contract in contracts("protected")
        for package in contract["protected_modules"]
    }
    assert found == table


def test_only_the_root_package_is_exempt_from_the_contracts_on_packages() -> None:
    exempt = [imported for contract in contracts("protected") for imported in contract.get("ignore_imports", ())]
    assert sorted(exempt) == ["lucius -> lucius.client", "lucius -> lucius.worker"]


def test_contract_on_adapters_lists_every_adapter() -> None:
    (contract,) = contracts("independence")
    assert sorted(contract["modules"]) == sorted(_adapters())


def _adapters() -> list[str]:
    """Return the adapters: packages below the folder of a port, or the folder if its port has one adapter."""
    found = []
    for folder in sorted(path for path in (SRC / "adapters").iterdir() if (path / "__init__.py").exists()):
        parts = [path.name for path in folder.iterdir() if (path / "__init__.py").exists()]
        modules = [path.stem for path in folder.glob("*.py") if folder.name == "bus" and path.stem != "__init__"]
        inner = [*parts, *modules] if folder.name in ("bus", "ledger") else []
        found += [f"lucius.adapters.{folder.name}.{part}" for part in inner] or [f"lucius.adapters.{folder.name}"]
    return found
