"""No module of Lucius imports itself through others."""

import graphlib

import grimp


def test_modules_import_each_other_without_cycles() -> None:
    graph = grimp.build_graph("lucius", exclude_type_checking_imports=False)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        raise AssertionError("import cycle: " + " -> ".join(reversed(error.args[1]))) from None
