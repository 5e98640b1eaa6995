"""The names that researchers import have examples, and the examples give what they say."""

import doctest
import importlib

import pytest

import gma

EXAMPLES = ("gma", "gma.load", "gma.translate", "gma.evaluate", "gma.Transformer", "gma.metrics")


def public(name: str) -> object:
    module, _, attribute = name.partition(".")
    return getattr(importlib.import_module(module), attribute) if attribute else importlib.import_module(module)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_gives_what_it_says(name):
    thing = public(name)
    test = doctest.DocTestParser().get_doctest(thing.__doc__, {}, name, None, None)
    assert test.examples
    failures = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=failures.append)
    assert not failures, "".join(failures)


def test_every_public_name_is_there():
    assert set(gma.__all__) <= set(dir(gma))
    for name in gma.__all__:
        assert getattr(gma, name) is not None
    with pytest.raises(AttributeError, match="'gma' has no attribute 'nothing'"):
        _ = gma.nothing
