"""Each contract about imports fails at an import that it forbids."""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any

import grimp
import pytest
from importlinter.application import use_cases
from importlinter.configuration import configure
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from importlinter.domain.contract import Contract

configure()
OPTIONS = use_cases.read_user_options()


def contracts() -> list[Contract]:
    kinds: dict[str, Any] = {"layers": LayersContract, "forbidden": ForbiddenContract}
    return [
        kinds[options["type"]](options["name"], OPTIONS.session_options, options)
        for options in OPTIONS.contracts_options
    ]


def forbidden_imports(contract: Any) -> Iterator[tuple[str, str]]:
    """Yield imports that point up, from each layer to the next; or to what is forbidden."""
    if isinstance(contract, ForbiddenContract):
        for source in contract.source_modules:
            for target in contract.forbidden_modules:
                yield str(source), str(target)
        return
    for container in contract.containers or [None]:
        layers = [
            [f"{container}.{part.name}" if container else part.name for part in layer.module_tails]
            for layer in contract.layers
        ]
        for above, below in itertools.pairwise(layers):
            yield from ((lower, upper) for lower in below for upper in above)
        yield from ((a, b) for layer in layers for a in layer for b in layer if a != b)


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("kafkalog", include_external_packages=True, cache_dir=None)


@pytest.mark.parametrize("contract", contracts(), ids=lambda contract: contract.name)
def test_a_contract_fails_at_each_import_that_it_forbids(
    graph: grimp.ImportGraph, contract: Contract
) -> None:
    assert contract.check(copy.deepcopy(graph), verbose=False).kept
    tried = 0
    for importer, imported in forbidden_imports(contract):
        changed = copy.deepcopy(graph)
        changed.add_import(importer=importer, imported=imported)
        assert not contract.check(changed, verbose=False).kept, f"{importer} may import {imported}"
        tried += 1
    assert tried


def test_each_package_of_streaming_has_a_layer(graph: grimp.ImportGraph) -> None:
    changed = copy.deepcopy(graph)
    changed.add_module("kafkalog.streaming.unheard_of")
    (contract,) = (each for each in contracts() if each.name.startswith("streaming"))
    assert not contract.check(changed, verbose=False).kept
